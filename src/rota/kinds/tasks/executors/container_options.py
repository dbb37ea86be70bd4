"""The option `container` of tasks: image and limits of the container that a run is executed in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rota.core import parse
from rota.core.errors import Invalid

IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@+-]{0,511}")  # never an option of the command line
NETWORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
PROGRAM = re.compile(r"[a-zA-Z0-9_/][a-zA-Z0-9_./-]{0,255}")
MANIFEST_BYTES = 100_000
PULL_RULES = ("missing", "always", "never")


@dataclass(frozen=True, slots=True)
class Container:
    """What a run's container is made of."""

    image: str
    place: str = "container"  # the executor
    pull: str = "missing"
    cpus: float | None = None
    network: str | None = None
    python: str = "python3"  # that calls a function
    memory_mb: int | None = None
    cwd: str | None = None
    env: Mapping[str, str] | tuple[str, ...] = ()  # variables, or patterns of those of the worker
    manifest: Mapping[str, Any] | None = None  # the template of a Job of Kubernetes


def read_container(value: object, field: str) -> Mapping[str, object]:
    """Return the option as it is stored. Raises Invalid, for all that is wrong at once."""
    if not isinstance(value, Mapping):
        raise Invalid(field, value, 'is not an object such as {"image": "python:3.13"}')
    form = parse.Form(value, frozenset(("image", "pull", "cpus", "network", "python", "manifest")))
    options: dict[str, object] = {
        "image": form.take("image", read_image, ""),
        "pull": form.take("pull", lambda rule, name: parse.one_of(rule, name, list(PULL_RULES)), None),
        "cpus": form.take("cpus", read_cpus, None),
        "network": form.take("network", lambda text, name: matching(text, name, NETWORK, "a network"), None),
        "python": form.take("python", lambda text, name: matching(text, name, PROGRAM, "a program"), None),
    }
    options["manifest"] = form.take("manifest", read_manifest, None)
    form.done()
    if not options["image"]:
        raise Invalid(f"{field}.image", None, "is missing: name the image, such as python:3.13")
    return {name: option for name, option in options.items() if option is not None}


def read_image(value: object, field: str) -> str:
    return matching(value, field, IMAGE, "the name of an image")


def read_cpus(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 1024:
        raise Invalid(field, value, "is not a number of CPUs from 0.01 to 1024")
    return float(value)


def read_manifest(value: object, field: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or value.get("kind", "Job") != "Job":
        raise Invalid(field, value, "is not the template of a Job of Kubernetes, as an object")
    if len(orjson.dumps(value, default=str)) > MANIFEST_BYTES:
        raise Invalid(field, "…", f"has more than {MANIFEST_BYTES} bytes of JSON")
    return dict(value)


def matching(value: object, field: str, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Invalid(field, value, f"is not {what}")
    return value
