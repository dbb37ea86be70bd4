"""Formats of the command line, and the files that it reads."""

import json

import pytest
import yaml

from rota.frame.cli.output import grid_of, yaml_text
from rota.frame.cli.watch import with_seconds
from rota.frame.cli.yaml_files import parse_yaml


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": [], "b": [1, {"c": None}]},
        {"yes": "no", "x y": "a: b", "at": "2026-11-16T13:00:00+00:00", "window": "22:00", "æ": "ø"},
        {"name": "a\u202eb\x1b[31m\x9b\nc"},
    ],
)
def test_yaml_is_read_as_it_was_written(data: object) -> None:
    assert yaml.safe_load(yaml_text(data)) == data
    assert parse_yaml(yaml_text(data)) == data
    assert not {"\u202e", "\x1b", "\x9b"} & set(yaml_text(data))


def test_scalars_of_yaml_files_are_those_of_json() -> None:
    text = "{a: 22:00, b: no, c: 2026-11-16, d: 1.5, e: -3, f: true, g: null, h: 0o7, i: 1e3, j: '5', k: 007, l: }"
    assert parse_yaml(text) == {
        "a": "22:00", "b": "no", "c": "2026-11-16", "d": 1.5, "e": -3, "f": True, "g": None, "h": "0o7", "i": 1000.0,
        "j": "5", "k": "007", "l": None,
    }  # fmt: skip
    assert parse_yaml(json.dumps({"a": ["x", 1, False, None]})) == {"a": ["x", 1, False, None]}
    for wrong in ("a: [", "a: b: c", "!!python/object:os.system {}"):
        with pytest.raises(ValueError, match="line 1"):
            parse_yaml(wrong)


@pytest.mark.parametrize(
    ("data", "grid"),
    [
        ({"items": [{"a": 1}, {"b": [2]}]}, (["a", "b"], [["1", ""], ["", "[2]"]])),
        ({"a": True, "b": None}, (["a", "b"], [["true", ""]])),
        ([["x", 1], "y"], ([], [["x", "1"], ["y"]])),
        ({"items": []}, ([], [])),
    ],
)
def test_a_grid_has_a_column_for_each_field(data: object, grid: object) -> None:
    assert grid_of(data) == grid


@pytest.mark.parametrize(
    ("args", "completed"),
    [
        ("list --watch", "list --watch 2.0"),
        ("--watch 5 list", "--watch 5 list"),
        ("show --watch nightly", "show --watch 2.0 nightly"),
        ("list --watch -o csv", "list --watch 2.0 -o csv"),
        ("", ""),
    ],
)
def test_watch_may_have_a_number(args: str, completed: str) -> None:
    assert with_seconds(args.split()) == completed.split()
