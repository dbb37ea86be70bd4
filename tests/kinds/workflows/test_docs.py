"""Executes the code of docs/workflows.md."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, mutation
from rota.kinds.workflows.scripts import jail
from rota.kinds.workflows.scripts.repair import CommandRepairer
from rota.testing import world

PAGE = Path(__file__).parents[3] / "docs" / "workflows.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    return namespace


async def test_the_first_example_writes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with world(run(BLOCKS[0])["app"]) as rota:
        await rota.advance(minutes=10)
        assert (await rota.workflow("inbox-to-sheet"))["issue"] is None
    lines = (tmp_path / "mail.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["Hello", "Bill"]


@pytest.mark.parametrize("code", BLOCKS[1:])
def test_the_others_run(code: str) -> None:
    run(code)


SCRIPT = re.findall(r"```python script\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
EXAMPLES = PAGE.parents[1] / "examples"


async def test_the_script_on_the_page_sends_letters() -> None:
    sent: list[str] = []

    class Letters:
        @mutation
        async def send(self, text: str) -> None:
            sent.append(text)

    app = Rota()
    app.connector("letters", Letters())
    async with world(app) as rota:
        await rota.workflows.upload(None, SCRIPT, None)
        await rota.publish("greetings", "names", message_id="1", payload={"name": "Ada"})
        await rota.drain()
        assert (await rota.workflow("greetings"))["issue"] is None
    assert sent == ["Hello Ada"]


def test_the_page_names_all_modules_that_a_script_can_import() -> None:
    documented = PAGE.read_text().partition("these modules: ")[2].partition("What it prints")[0]
    assert set(re.findall(r"`([a-zA-Z0-9.]+)`", documented)) == set(jail.MODULES) - {"collections.abc"}


async def test_the_example_of_a_script_is_repaired_by_the_example_of_a_repairer() -> None:
    repairer = CommandRepairer(f"{sys.executable} {EXAMPLES / 'repair.py'}")
    async with world(Rota(), repairer=repairer) as rota:
        await rota.workflows.upload(None, (EXAMPLES / "greetings.py").read_text(), None)
        await rota.publish("greetings", "names", message_id="1", payload={"full_name": "Ada"})
        await rota.drain()
        seen = await rota.workflow("greetings")
        assert (seen["version"], seen["issue"], seen["recent"][0]["text"]) == ("1.1", None, "greeted 1")
