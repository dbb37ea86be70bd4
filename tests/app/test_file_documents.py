"""YAML files of resources: bounds, places of errors, and the published schema."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.cli.files import with_place
from rota.app.files import documents
from rota.app.files.documents import Documents, FileError, read_files, yaml_of

SCHEMA = Path(__file__).parents[2] / "docs" / "files.schema.json"


def test_the_published_schema_is_that_of_the_models() -> None:
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.stdout == SCHEMA.read_text(), "run `rota schema > docs/files.schema.json`"
    schema = json.loads(printed.stdout)
    assert list(schema["properties"]) == ["queues", "calendars", "tasks", "pipelines", "grants", "schedules", "alarms"]
    assert "cron_expression" in schema["$defs"]["FileSchedule"]["properties"]


def test_entries_of_several_files_are_read_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("schedules:\n- name: a\n  window_start: 22:00\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yml").write_text("# only\n\nschedules:\n- name: b\n  retry:\n    max_retries: 2\n")
    (tmp_path / "empty.yaml").write_text("")
    read = read_files(tmp_path)
    assert read.resources == {
        "schedules": [{"name": "a", "window_start": "22:00"}, {"name": "b", "retry": {"max_retries": 2}}]
    }
    text = with_place("schedules[1].retry.max_retries: is too large", read)
    assert text == f"{tmp_path}/sub/b.yml:6: schedules.retry.max_retries: is too large"
    assert with_place("schedules[0].target is missing", read).startswith(f"{tmp_path}/a.yaml:2: schedules.target")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: &x []\nb: *x\n", 1, "anchors and aliases"),
        ("schedules:\n- name: !!python/object:os.system x\n", 2, "tags"),
        ("schedules:\n- name: a\n  name: b\n", 3, "name appears twice"),
        ("a: []\n---\nb: []\n", 2, "several documents"),
        ("a: [" + "[" * 40 + "]" * 40 + "]\n", 1, "nested more than 30"),
        ("- a\n", 1, "is not an object of resources"),
        ("schedules: x\n", 1, "schedules is not a list"),
        ("schedules:\n- x\n", 2, "is not an object"),
        ("schedules:\n  - a: [\n", 3, ""),
        ("? [a]\n: b\n", 1, "a key is not text"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(FileError, match=rf"f\.yaml:{line}: .*{message}"):
        Documents().add("f.yaml", text)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="has no file"):
        read_files(tmp_path)
    with pytest.raises(FileError, match="No such file"):
        read_files(tmp_path / "missing.yaml")
    with pytest.raises(FileError, match="is larger than"):
        Documents().add("f", "#" * (documents.FILE_BYTES_MAX + 1))
    monkeypatch.setattr(documents, "NODES_MAX", 10)
    with pytest.raises(FileError, match="more than 10 values"):
        Documents().add("f", "a: [" + "1, " * 20 + "]")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(FileError, match="not UTF-8"):
        read_files(tmp_path)


def test_what_is_written_is_read_back() -> None:
    entry = {
        "name": "null",
        "a": "22:00",
        "b": "no",
        "c": "12",
        "d": 12,
        "e": True,
        "f": None,
        "g": "x\ny\n",
        "h": [1.5],
    }
    read = Documents()
    read.add("f", yaml_of({"tasks": [entry, entry]}))
    assert read.resources == {"tasks": [entry, entry]}


def test_a_file_that_cannot_be_read_ends_the_command(tmp_path: Path) -> None:
    for verb in ("plan", "apply"):
        ended = CliRunner().invoke(app, [verb, "-f", str(tmp_path / "x.yaml")])
        assert ended.exit_code == 2
        assert "No such file" in ended.stderr
