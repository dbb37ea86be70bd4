"""YAML that people write, with the scalars of JSON."""

import re

import yaml


class JsonScalars(yaml.SafeLoader):
    """Reads numbers, true, false and null as in JSON, everything else as text. YAML 1.1, which PyYAML implements, would
    read `22:00` as a number, `no` as false and `2026-11-16` as a date."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's name


for tag, pattern, first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(?:0|[1-9]\d*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", "-0123456789"),
):
    JsonScalars.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$", re.ASCII), list(first))


def parse_yaml(text: str) -> object:
    """Return the data of a YAML document. Raises ValueError."""
    try:
        return yaml.load(text, JsonScalars)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
