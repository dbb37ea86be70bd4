"""Lists of public names agree: type checkers read two of them, Python the third."""

import ast
from pathlib import Path
from typing import get_args

import rota
from rota import client
from rota.core.states import Status


def test_all_and_the_typed_imports_of_the_package_list_the_names_of_homes() -> None:
    tree = ast.parse(Path(rota.__file__).read_text())
    (typed_block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: statement.module
        for statement in typed_block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == rota.HOMES
    assert sorted(rota.__all__) == sorted([*rota.HOMES, "__version__"])
    assert all(getattr(rota, name) is not None for name in rota.HOMES)


def test_the_client_knows_each_status_of_a_run() -> None:
    assert list(get_args(client.Status)) == [status.value for status in Status]
