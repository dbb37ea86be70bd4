"""The code in the docs runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from rota.testing import world

PAGE = Path(__file__).parents[2] / "docs" / "workflows.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(code: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), found)
    return found


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
