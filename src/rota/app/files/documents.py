"""YAML files of resources: read with bounds and with the line of each field, and written.

Aliases, anchors and tags are refused, keys must be unique, and size and depth are limited: a file is data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rota.frame.cli.yaml_files import JsonScalars

FILE_BYTES_MAX = 2 * 1024 * 1024
TOTAL_BYTES_MAX = 6 * 1024 * 1024
FILES_MAX = 1_000
DEPTH_MAX = 30
NODES_MAX = 200_000
SUFFIXES = (".yaml", ".yml")

FieldPath = tuple[str | int, ...]


class FileError(Exception):
    """A file cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file describes something."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Documents:
    """Entries of files by resource, and the place of each entry and field: `("schedules", 3, "cron_expression")`."""

    resources: dict[str, list[Any]] = field(default_factory=dict)
    places: dict[FieldPath, Place] = field(default_factory=dict)

    def place_of(self, path: Sequence[str | int]) -> Place | None:
        """Return the place of a field, or of the nearest thing that contains it; None if that is unknown."""
        for length in range(len(path), 0, -1):
            if (place := self.places.get(tuple(path[:length]))) is not None:
                return place
        return None

    def add(self, file: str, text: str) -> None:
        """Add the entries of a file. Raises FileError."""
        if len(text.encode()) > FILE_BYTES_MAX:
            raise FileError(f"{file}: is larger than {FILE_BYTES_MAX} bytes")
        root = root_of(file, text)
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise FileError(f"{Place(file, line_of(root))}: is not an object of resources, such as `schedules: […]`")
        for key, node in members(file, root):
            if not isinstance(node, yaml.SequenceNode):
                raise FileError(f"{Place(file, line_of(node))}: {key} is not a list")
            entries = self.resources.setdefault(key, [])
            self.places.setdefault((key,), Place(file, line_of(node)))
            for entry in node.value:
                path: FieldPath = (key, len(entries))
                if not isinstance(entry, yaml.MappingNode):
                    raise FileError(f"{Place(file, line_of(entry))}: an entry of {key} is not an object")
                entries.append(self.value_of(file, entry, path))

    def value_of(self, file: str, node: yaml.Node, path: FieldPath) -> Any:
        """Return the data of a node and record the places of what it contains."""
        self.places[path] = Place(file, line_of(node))
        if isinstance(node, yaml.MappingNode):
            values = {}
            for key, member in members(file, node):
                values[key] = self.value_of(file, member, (*path, key))
                self.places[*path, key] = Place(file, line_of(member))
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self.value_of(file, item, (*path, position)) for position, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return scalar_of(node)


def read_files(source: Path) -> Documents:
    """Read a file, or all YAML files below a directory. Raises FileError."""
    documents, total = Documents(), 0
    paths = files_below(source) if source.is_dir() else [source]
    if not paths:
        raise FileError(f"{source}: has no file *.yaml or *.yml")
    for path in paths:
        try:
            total += path.stat().st_size
            if total > TOTAL_BYTES_MAX:
                raise FileError(f"{path}: the files are larger than {TOTAL_BYTES_MAX} bytes together")
            documents.add(str(path), path.read_text("utf-8"))
        except OSError as error:
            raise FileError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise FileError(f"{path}: is not UTF-8 at byte {error.start}") from None
    return documents


def files_below(directory: Path) -> list[Path]:
    paths = sorted(path for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if len(paths) > FILES_MAX:
        raise FileError(f"{directory}: has more than {FILES_MAX} files")
    return paths


def root_of(file: str, text: str) -> yaml.Node | None:
    """Return the root node of a document; None if it is empty. Raises FileError."""
    try:
        check_events(file, text)
        return yaml.compose(text, JsonScalars)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FileError(f"{Place(file, line)}: {error.problem or 'is not YAML'}") from None
    except yaml.YAMLError as error:
        raise FileError(f"{file}: is not YAML: {str(error).splitlines()[0]}") from None


def check_events(file: str, text: str) -> None:
    """Raise FileError for aliases, anchors, tags, several documents, and documents that are too deep or too large,
    before anything is built from them."""
    depth = documents = 0
    for number, event in enumerate(yaml.parse(text, JsonScalars)):
        place = Place(file, event.start_mark.line + 1) if event.start_mark else file
        if number > NODES_MAX:
            raise FileError(f"{place}: has more than {NODES_MAX} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise FileError(f"{place}: anchors and aliases are not allowed; repeat the value")
        if (tag := getattr(event, "tag", None)) is not None:
            raise FileError(f"{place}: tags such as {tag} are not allowed")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise FileError(f"{place}: has several documents; use one file for each")
        if depth > DEPTH_MAX:
            raise FileError(f"{place}: is nested more than {DEPTH_MAX} levels deep")


def members(file: str, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the members of an object. Raises FileError for a key that is not text, or repeated."""
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise FileError(f"{Place(file, line_of(key))}: a key is not text")
        if key.value in seen:
            raise FileError(f"{Place(file, line_of(key))}: {key.value} appears twice in one object")
        seen.add(key.value)
        yield key.value, value


def scalar_of(node: yaml.ScalarNode) -> Any:
    match node.tag.rpartition(":")[2]:
        case "bool":
            return node.value == "true"
        case "null":
            return None
        case "int":
            return int(node.value)
        case "float":
            return float(node.value)
        case _:
            return node.value


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def yaml_of(data: Mapping[str, object]) -> str:
    """Return data as YAML that these functions read back as it is."""
    return str(yaml.dump(data, Dumper=BlockText, sort_keys=False, allow_unicode=True, width=120))


class BlockText(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and repeats equal values instead of aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


BlockText.add_representer(str, represent_text)
