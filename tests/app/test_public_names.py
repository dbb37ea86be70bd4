"""Public modules and names. Each module can be imported first: an import cycle shows only then."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import rota
from rota import client
from rota.core.states import Status

MODULES = sorted({*rota.HOMES.values(), "rota.agent", "rota.client", "rota.connectors", "rota.graphs", "rota.testing"})


@pytest.mark.parametrize("module", MODULES)
def test_a_program_may_import_it_first(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


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
