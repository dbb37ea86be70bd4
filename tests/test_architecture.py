"""ARCHITECTURE.md is true: its functions exist and are called in that order, its diagrams and tables are those of the
code."""

import ast
import json
import re
import subprocess
import sys
from itertools import chain

import rota.app.application  # noqa: F401  # registers the kinds
from rota.core.kinds import registered
from rota.db import tables
from tests.diagrams import PAGE, with_diagrams

ROOT = PAGE.parent
STEP = re.compile(r"^\|[^|]*\| \[`([\w.]+)`\]\((src/rota/[\w/]+\.py)\)", re.MULTILINE)


def test_a_slot_takes_the_listed_functions_in_their_order() -> None:
    steps = [(path, name) for name, path in STEP.findall(PAGE.read_text())]
    assert len(steps) > 20
    command = [sys.executable, "-m", "tests.call_order"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100).stdout
    called = [(path, name) for path, name in json.loads(output.splitlines()[-1])]
    assert [step for step in steps if step not in called] == []
    assert [step for step in called if step in steps] == steps
    assert len({path for path, _ in steps}) <= 25


def test_the_state_diagrams_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert with_diagrams(text) == text, "run `make diagrams`"


def test_every_table_is_in_the_table_map() -> None:
    text = PAGE.read_text()
    listed = text[text.index("## Tables") : text.index("## Processes")]
    missing = [name for name in tables.metadata.tables if f"`{name}`" not in listed]
    assert missing == []


def test_every_folder_is_in_the_plan() -> None:
    text = PAGE.read_text()
    folders = [path.parent.name for path in (ROOT / "src" / "rota").glob("*/__init__.py")]
    assert [name for name in folders if f"      {name}/" not in text] == []


def test_the_engine_names_no_kind() -> None:
    kinds = {"task", "pipeline", "graph", "host_job", "workflow"}
    assert kinds <= set(registered())  # a program that another test loaded may have added its own
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for layer in ("core", "db", "engine", "reports", "user_code", "frame")
        for path in (ROOT / "src" / "rota" / layer).rglob("*.py")
        if path.name != "kinds.py"  # it has the kind of requests that name none
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in kinds
    ]
    assert named == []


def test_no_annotation_uses_a_name_that_its_class_binds() -> None:
    """From Python 3.14 on, annotations are evaluated when the class is complete: a name means the attribute then."""
    shadowed = [
        f"{path.relative_to(ROOT)}:{annotation.lineno} {name.id}"
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for annotation in annotations_in(node)
        for name in ast.walk(annotation)
        if isinstance(name, ast.Name) and name.id in bound_names(node)
    ]
    assert shadowed == []


def annotations_in(node: ast.ClassDef) -> list[ast.expr]:
    """The annotations of a class's attributes and methods."""
    annotations: list[ast.expr | None] = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            annotations.append(statement.annotation)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(statement.returns)
            annotations += [word.annotation for word in ast.walk(statement.args) if isinstance(word, ast.arg)]
    return [annotation for annotation in annotations if annotation is not None]


def bound_names(node: ast.ClassDef) -> set[str]:
    """The names of methods and of attributes with a value."""
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    values = [item for item in node.body if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None]
    targets = [item.targets if isinstance(item, ast.Assign) else [item.target] for item in values]
    return methods | {target.id for target in chain.from_iterable(targets) if isinstance(target, ast.Name)}
