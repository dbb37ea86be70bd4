"""Executes the code of docs/durable-tasks.md and examples/durable_order.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from rota.core.states import Status
from rota.testing import world
from tests.kinds.tasks.durable import enqueue, last_run, recorded

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "durable-tasks.md"


def load(code: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "page", "exec"), namespace)
    return namespace["app"]


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


async def test_the_sensor_of_the_page_looks_until_the_file_is_there(tmp_path: Path) -> None:
    file = tmp_path / "upload"
    async with world(load(programs()[1])) as rota:
        job_id = await enqueue(rota, "after_upload", path=str(file))
        await rota.advance(minutes=20)
        file.touch()
        await rota.advance(minutes=20)
        assert (await last_run(rota, job_id))["outcome"] == str(file)


async def test_the_saga_of_the_page_undoes_what_was_done() -> None:
    async with world(load(programs()[2])) as rota:
        job_id = await enqueue(rota, "journey", traveller="Ada")
        await rota.drain()
        assert (await last_run(rota, job_id))["status"] == Status.FAILED
        assert await recorded(rota, job_id) == [("flight", "done"), ("hotel", "failed"), ("cancel flight", "done")]


async def test_the_order_of_the_page_is_delivered() -> None:
    async with world(load(programs()[0])) as rota:
        job_id = await enqueue(rota, "order", number="7")
        await rota.advance(hours=2)
        await rota.engine.send_signal(rota.org_id, "delivered", key="7", payload="noon")
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == ["paid 7", "parcel of 7", "noon"]


async def test_the_programs_of_the_page_for_newcomers_run() -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "coming-from.md").read_text(), re.DOTALL)
    temporal, dbos, celery, airflow = map(load, code)
    for program, shipped in ((temporal, ["parcel of 7"]), (dbos, [])):
        async with world(program) as rota:
            job_id = await enqueue(rota, "order", number="7")
            await rota.advance(hours=2)
            await rota.engine.send_signal(rota.org_id, "paid", key="7", payload="today")
            await rota.drain()
            assert (await last_run(rota, job_id))["outcome"] == ["invoice of 7", "today", *shipped]
    async with world(celery) as rota:
        job_id = await enqueue(rota, "book", pages=2)
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == "thumbnail 0 + thumbnail 1"
    async with world(airflow) as rota:
        await rota.advance(days=1)
        (run,) = await rota.runs(target="nightly")
        assert run["outcome"] == ["loaded a of 2026-05-05", "loaded b of 2026-05-05"]


@pytest.mark.parametrize("approved", [True, False])
async def test_the_example_asks_before_it_charges(
    approved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with world(load((ROOT / "examples" / "durable_order.py").read_text())) as rota:
        job_id = await enqueue(rota, "order", number="1042", amount=700)
        await rota.drain()
        assert not (tmp_path / "payments").exists()
        await rota.engine.decide_approval(rota.org_id, job_id, approved=approved, by="ada", may=lambda who: True)
        await rota.drain()
        if approved:
            await rota.engine.send_signal(rota.org_id, "parcel.sent", key="1042", payload={"tracking": "NO-7"})
            await rota.drain()
        run = await last_run(rota, job_id)
        assert run["status"] == Status.SUCCESS
        if not approved:
            assert run["outcome"] == {"rejected_by": "ada"}
            return
        assert run["outcome"]["receipt"] == "Order 1042: 700 €"
        assert [path.name for path in (tmp_path / "payments").iterdir()] == [f"{job_id}:charge"]
