"""What stored tasks may ask of the processes that run them."""

from pathlib import Path
from typing import Any

import pytest

from rota.db.dialect import Tx
from rota.db.tables import tasks
from tests.app.harness import Api
from tests.kinds.tasks.harness import open_task_harness

PROGRAM = """
import os
from rota import Rota

app = Rota()


@app.task(isolation="process", cwd={planted!r})
def declared() -> str:
    return os.getcwd()


@app.task(isolation="process")
def stored() -> str:
    return os.getcwd()
"""


async def test_an_isolated_function_imports_nothing_from_its_working_directory(tmp_path: Path, clean_url: str) -> None:
    if not clean_url.startswith("sqlite"):
        pytest.skip("the database has no part in it")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "orjson.py").write_text("raise SystemExit('planted code ran')")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(planted=str(planted)))
    harness = await open_task_harness(clean_url, str(program))
    try:
        run = await harness.run("declared")
        assert (run["status"], run["outcome"]) == ("success", str(planted))
        row = await harness.store("stored", name="row")

        def from_long_ago(tx: Tx) -> None:  # when cwd was accepted for functions
            tx.execute(tasks.update().where(tasks.c.id == row["id"]).values(options={"cwd": str(planted)}))

        await harness.db.tx(from_long_ago)
        run = await harness.execute(row)
        assert (run["status"], run["outcome"]) == ("success", str(Path.cwd()))
    finally:
        await harness.close()


async def test_options_of_commands_are_refused_for_functions(api: Api) -> None:
    function = {"task_type": "python", "command": "hello"}
    for option, value in (("cwd", "/tmp"), ("env", {"LD_PRELOAD": "/tmp/x.so"}), ("stdin", "x")):
        refused = await api.call("POST", "/tasks", {**function, "name": "f", option: value})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, option)
        assert (await api.call("POST", "/tasks", {"name": option, "command": "true", option: value})).status_code == 201
    assert (await api.call("POST", "/tasks", {**function, "name": "f"})).status_code == 201
    assert (await api.call("PATCH", "/tasks/f", {"cwd": "/tmp"})).status_code == 422


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"A B": "x"}, {"1A": "x"}, {"": "x"}, ["A=B"], ["1A"], ["A B"]])
async def test_names_of_variables_are_checked(api: Api, env: Any) -> None:
    refused = await api.call("POST", "/tasks", {"name": "x", "command": "true", "env": env})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "env")


async def test_patterns_of_variables_are_accepted(api: Api) -> None:
    for env in (["AWS_*", "LC_?", "*"], {"_A1": "x"}):
        made = await api.call("POST", "/tasks", {"command": "true", "env": env})
        assert (made.status_code, made.json()["env"]) == (201, env)
