"""The public modules, imported as the first thing of a program: an import cycle shows only then."""

import subprocess
import sys

import pytest

import rota

MODULES = sorted({*rota.HOMES.values(), "rota.agent", "rota.client", "rota.connectors", "rota.graphs", "rota.testing"})


@pytest.mark.parametrize("module", MODULES)
def test_a_program_may_import_it_first(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
