"""Names of pipelines, and what a program declares."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rota.core.errors import Invalid

LAYERS = ("bronze", "silver", "gold")
SLUG = re.compile(r"[a-z][a-z0-9_-]{0,59}")


@dataclass(frozen=True, slots=True)
class Declared:
    """A pipeline in a program: a function, or SQL."""

    path: str
    function: Callable[..., Any] | None
    sql: str | None
    reads: tuple[str, ...]  # of a function: it cannot be told from its code
    after: tuple[str, ...]  # on whose success it runs
    description: str


class PipelineRegistry:
    def __init__(self) -> None:
        self.known: dict[str, Declared] = {}

    def add(
        self, path: str, function: Callable[..., Any] | None, sql: str | None, reads: Sequence[str] = (),
        after: str | Sequence[str] = (), description: str = "",
    ) -> None:  # fmt: skip
        if read_path(path, "name") in self.known:
            raise Invalid("name", path, "is declared twice")
        if sql is not None and reads:
            raise Invalid("reads", reads, "is for functions; what SQL reads stands in it")
        upstreams = (after,) if isinstance(after, str) else tuple(after)
        about = description or (inspect.getdoc(function) or "").partition("\n")[0]
        self.known[path] = Declared(
            path, function, sql, tuple(read_path(one, "reads") for one in reads),
            tuple(read_path(one, "after") for one in upstreams), about,
        )  # fmt: skip

    def functions(self) -> list[str]:
        return [path for path, one in self.known.items() if one.function is not None]


def read_path(value: Any, field: str) -> str:
    """`namespace/layer/name`."""
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) != 3:
        raise Invalid(field, value, "is not the path of a pipeline, like sales/silver/daily_totals")
    namespace, layer, name = parts
    return path_of(namespace, layer, name, field)


def path_of(namespace: Any, layer: Any, name: Any, field: str = "") -> str:
    """The path of these three; each must be right."""
    slug(namespace, field or "namespace")
    if layer not in LAYERS:
        raise Invalid(field or "layer", layer, f"is not one of {', '.join(LAYERS)}")
    return f"{namespace}/{layer}/{slug(name, field or 'name')}"


def slug(value: Any, field: str) -> str:
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        right = "is not a slug: a small letter, then up to 59 small letters, digits, - and _"
        raise Invalid(field, value, right)
    return value
