"""The timeline, the grid and the drawings of pipelines and workflows, over HTTP, on both databases."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from rota.core.states import Status
from rota.kinds.pipelines.web import around, drawing
from tests.access.test_web_login import browser, log_in
from tests.app.forms import words
from tests.app.harness import NINE, Api
from tests.kinds.pipelines.test_api import ORDERS, TOTALS

SLOTS = "INSERT INTO slots (schedule_id, slot, job_id, attempts) SELECT schedule_id, queued_at, job_id, 1 FROM runs"
MISSED = (
    "INSERT INTO slots (schedule_id, slot, verdict, reason, attempts)"
    " SELECT id, created_at, 'missed', 'late', 0 FROM schedules"
)


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        await log_in(api, client)
        await api.schedule("nightly")
        yield client


async def ended_run(api: Api, status: Status, reason: str | None = None) -> Any:
    """Let a run of `nightly` wait for 3 seconds and run for 7."""
    await api.job()
    await api.clock.advance(timedelta(seconds=3))
    (begun,) = await api.start()
    await api.clock.advance(timedelta(seconds=7))
    await api.end([begun], status, reason)
    return begun.run_id


async def test_the_timeline_shows_waits_and_runs_of_its_range(api: Api, admin: httpx.AsyncClient) -> None:
    good, bad = await ended_run(api, Status.SUCCESS), await ended_run(api, Status.FAILED, "logic")
    await api.execute(MISSED)
    await api.job()
    page = (await admin.get("/timeline?span=minute")).text
    assert f'href="/runs/{good}"' in page
    assert "failed for 7.0s" in page
    assert "waited 3.0s" in page
    assert "missed, 2026-05-04 09:00:00 UTC: late" in page
    assert "1 failed, 1 missed, 1 pending, 1 success, p50 7.0s, p95 7.0s" in page
    failed = (await admin.get("/timeline?span=minute&status=failed&kind=task")).text
    assert f'href="/runs/{bad}"' in failed
    assert f'href="/runs/{good}"' not in failed
    assert "No schedule matches" in (await admin.get("/timeline?span=minute&status=crashed")).text
    pending = (await admin.get("/timeline?span=minute&status=pending")).text
    assert "1 pending" in pending
    second = "from=2026-05-04T09:00:05Z&to=2026-05-04T09:00:06Z"
    inside = (await admin.get(f"/timeline?{second}")).text
    assert 'x="0.00%" width="100.00%"' in inside  # the first run, which began before and ended after
    assert "1 success" in inside
    assert "09:00:05.200" in inside
    before = (await admin.get("/timeline?from=2026-05-01T09:00:00Z&to=2026-05-01T10:00:00Z")).text
    assert "no runs" in before
    assert (await admin.get("/timeline?from=2026-05-04T09:00:00Z&to=2026-05-04T09:00:00Z")).status_code == 422
    assert (await admin.get("/timeline?from=x&to=y")).status_code == 422


async def test_cells_of_the_grid_link_to_runs(api: Api, admin: httpx.AsyncClient) -> None:
    good, bad = await ended_run(api, Status.SUCCESS), await ended_run(api, Status.FAILED, "logic")
    await api.execute(SLOTS)
    page = (await admin.get("/grid")).text
    assert f'<a class="success" href="/runs/{good}"' in page
    assert f'<a class="failed" href="/runs/{bad}"' in page
    assert "1 of 2" in words(page)
    tasks = (await admin.get("/grid?task=hello")).text
    assert f'href="/runs/{bad}" title="2026-05-04 09:00:13 UTC: failed, 7.0s"' in tasks
    assert "7.0s" in words(tasks)
    assert "Nothing to show" in (await admin.get("/grid?of=steps")).text


async def test_pipelines_are_drawn_with_their_last_runs(api: Api, admin: httpx.AsyncClient) -> None:
    for body in (ORDERS, TOTALS):
        assert (await api.call("POST", "/pipelines", body)).status_code == 201
    await ended_run(api, Status.FAILED, "logic")
    await api.execute("UPDATE runs SET kind = 'pipeline', target = 'sales/bronze/orders'")
    page = (await admin.get("/pipelines")).text
    assert 'class="box bronze failed"' in page
    assert "failed · 7.0s · " in page
    assert "orders → daily_totals" in page
    own = (await admin.get("/pipelines/sales/silver/daily_totals")).text
    assert 'aria-current="true"' in own
    assert "has not run" in own
    assert 'class="box silver none current"' in own
    grid = (await admin.get("/grid?of=pipelines")).text
    assert "sales/bronze/orders" in grid
    assert 'class="failed"' in grid


def test_hundreds_of_pipelines_fit_into_a_page() -> None:
    layers = ("bronze", "silver", "gold")
    nodes = [{"path": f"sales/{layers[n % 3]}/table_number_{n}", "namespace": "sales", "layer": layers[n % 3],
              "name": f"table_number_{n}", "type": "sql"} for n in range(400)]  # fmt: skip
    edges = [
        {"from": nodes[n]["path"], "to": nodes[(7 * n + 1) % 400]["path"], "kind": "reads"} for n in range(400)
    ] + [{"from": nodes[n]["path"], "to": nodes[(n + 1) % 400]["path"], "kind": "cron"} for n in range(400)]
    run = {"status": "success", "reason": None, "outcome": {"rows_written": 12_000}, "started_at": NINE,
           "finished_at": NINE + timedelta(seconds=3)}  # fmt: skip
    drawn = str(drawing(nodes, edges, {node["path"]: run for node in nodes}, NINE + timedelta(minutes=1)))
    assert drawn.count("<a ") == 400
    assert drawn.count("data-e=") + int(re.findall(r"(\d+) long arrows are not drawn", drawn)[0]) >= 798
    assert len(drawn.encode()) < 185_000  # of the 200 kB that a page may have


def test_the_drawing_of_a_pipeline_has_what_is_before_and_after_it() -> None:
    edges = [{"from": start, "to": end, "kind": "reads"} for start, end in ("ab", "bc", "cd", "xc", "ay")]
    assert around("c", edges, 10) == {"a", "b", "c", "d", "x"}  # y follows a, but not c
    assert len(around("c", edges, 3)) == 3
