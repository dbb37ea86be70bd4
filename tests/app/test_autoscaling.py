"""The wanted workers: route and metric, on both databases, and workers that end when idle."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, update

from rota.core.ids import new_id
from rota.db.dialect import Tx
from rota.db.tables import jobs, runs
from rota.reports import autoscaling
from tests.app.harness import NINE, Api
from tests.app.test_health import register
from tests.app.test_metrics_endpoint import start

PATH = "/queues/$wanted"


async def add_jobs(api: Api, count: int, **fields: Any) -> None:
    """Add ready jobs of the task `hello` without a schedule."""
    row = {
        "org_id": api.org_id, "kind": "task", "target": "hello", "route": "task:default:hello", "queue": "default",
        "priority": 0, "queued_at": NINE, "run_at": NINE, "state": "ready", "trigger": "manual", "attempt": 0,
        "tries": 0, "crashes": 0, "rescues": 0, "fence": 0, **fields,
    }  # fmt: skip

    def step(tx: Tx) -> None:
        tx.execute(insert(jobs), [{**row, "id": new_id()} for _ in range(count)])

    await api.db.tx(step)


async def add_runs(api: Api, seconds: float, **fields: Any) -> None:
    """Add five successful runs that took this long."""
    row = {
        "org_id": api.org_id, "kind": "task", "target": "hello", "route": "task:default:hello", "trigger": "manual",
        "attempt": 1, "status": "success", "queued_at": NINE, "started_at": NINE, "recorded_at": NINE,
        "finished_at": NINE + timedelta(seconds=seconds), "lost_fence": 0, **fields,
    }  # fmt: skip

    def step(tx: Tx) -> None:
        tx.execute(insert(runs), [{**row, "id": new_id(), "job_id": new_id()} for _ in range(5)])

    await api.db.tx(step)


async def test_nothing_due_needs_no_worker(api: Api) -> None:
    await api.schedule("noon")  # at 12
    expected = {"wanted_workers": 0, "places": 0.0, "concurrency": 50, "capped": False, "queues": []}
    assert await api.get(PATH) == expected


async def test_due_jobs_need_places_by_their_usual_duration(api: Api) -> None:
    await add_runs(api, 30.0)
    await add_jobs(api, 300)  # 9,000 s of work: 150 places for a minute
    wanted = await api.get(PATH)
    (queue,) = wanted["queues"]
    assert queue == {
        "queue": "default", "due": 300, "running": 0, "places": 150.0, "concurrency": 50, "wanted_workers": 3,
    }  # fmt: skip
    assert (await api.get(PATH, within="10m"))["wanted_workers"] == 1
    assert (await api.get(PATH, concurrency=10))["wanted_workers"] == 15
    await register(api)  # a worker with one place
    assert (await api.get(PATH))["wanted_workers"] == 150


async def test_jobs_of_a_schedule_count_with_the_duration_of_its_own_runs(api: Api) -> None:
    schedule_id = (await api.schedule("long"))["id"]
    await add_runs(api, 1.0)
    await add_runs(api, 60.0, schedule_id=schedule_id)
    await add_jobs(api, 60)
    await add_jobs(api, 10, schedule_id=schedule_id)
    assert (await api.get(PATH))["places"] == 11.0


async def test_what_becomes_due_soon_counts(api: Api) -> None:
    await api.schedule("soon", cron_expression="30 9 * * *")
    await add_jobs(api, 2, state="later", run_at=NINE + timedelta(minutes=29), queue="slow")
    assert (await api.get(PATH))["queues"] == []
    wanted = await api.get(PATH, ahead="1h")
    assert [(queue["queue"], queue["due"]) for queue in wanted["queues"]] == [("default", 1), ("slow", 2)]
    assert wanted["wanted_workers"] == 1
    assert [queue["queue"] for queue in (await api.get(PATH, ahead="1h", queues="slow, idle"))["queues"]] == [
        "idle",
        "slow",
    ]


async def test_limits_and_pauses_of_queues_bound_what_is_wanted(api: Api) -> None:
    await add_jobs(api, 120)
    assert (await api.get(PATH))["places"] == 120.0  # no run yet: a place for each
    await api.call("PUT", "/queues/default", {"max_running": 7})
    assert (await api.get(PATH))["places"] == 7.0
    await api.call("PUT", "/queues/default", {"rate": "9/1m", "burst": 3})
    assert (await api.get(PATH))["places"] == 12.0
    await api.call("PUT", "/queues/default", {"paused": True})
    assert (await api.get(PATH))["places"] == 0.0
    await api.db.tx(lambda tx: tx.execute(update(jobs).values(state="running", lease_owner="w")))
    assert (await api.get(PATH))["queues"][0]["running"] == 120


async def test_more_due_jobs_than_are_counted_are_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaling, "JOBS_COUNTED", 100)
    monkeypatch.setattr(autoscaling, "JOBS_SAMPLED", 10)
    await add_jobs(api, 100)
    assert [(await api.get(PATH))[name] for name in ("places", "capped")] == [100.0, False]
    await add_jobs(api, 1)
    assert [(await api.get(PATH))[name] for name in ("places", "capped")] == [100.0, True]


@pytest.mark.parametrize(
    "query", [{"within": "0s"}, {"within": "soon"}, {"ahead": "-1s"}, {"concurrency": 0}, {"queues": "a,,b"}]
)
async def test_wrong_parameters_are_refused(api: Api, query: dict[str, object]) -> None:
    answer = await api.call("GET", PATH, params=query)
    assert answer.status_code == 422
    assert next(iter(query)) in answer.text


async def test_other_orgs_see_their_own_queues_alone(api: Api) -> None:
    await add_jobs(api, 3, queue="secret")
    org = (await api.call("POST", "/orgs", {"slug": "acme", "name": "Acme"})).json()
    headers = {"authorization": f"Bearer {org['admin_key']}"}
    assert (await api.call("GET", PATH, headers=headers)).json()["queues"] == []
    assert [queue["queue"] for queue in (await api.get(PATH))["queues"]] == ["secret"]
    elsewhere = {"x-forwarded-for": "10.0.0.1"}
    own, other = [(await api.client.get("/metrics", headers={**elsewhere, **more})).text for more in ({}, headers)]
    assert 'rota_queue_wanted_workers{queue="secret"} 1.0' in own.splitlines()
    assert "rota_wanted_workers 1.0" in other.splitlines()
    assert "secret" not in other


async def test_the_route_needs_a_key(api: Api) -> None:
    api.client.headers.pop("authorization")
    answer: httpx.Response = await api.call("GET", PATH)
    assert answer.status_code == 401


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_ends_when_it_has_been_idle(tmp_path: Path, processes: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from rota import Rota\napp = Rota()\n@app.task\ndef once():\n    print('ran once')\n"
        "app.schedule('once', 'once', every='1s', max_runs=3)\n"
    )
    options = [str(program), "--exit-when-idle", "2s", "--processes", str(processes)]
    worker = start(tmp_path, *options)
    assert worker.popen.wait(timeout=90) == 0, worker.log_text()
    log = worker.log_text()
    assert log.count("worker had no job; stopping") == processes
    assert log.count("worker started") == processes, "none was started again"


def test_a_wrong_idle_span_is_refused(tmp_path: Path) -> None:
    worker = start(tmp_path, "--exit-when-idle", "soon")
    assert worker.popen.wait(timeout=60) == 2
    assert "exit_when_idle: 'soon' must be a span such as 30s, 5m" in worker.log_text()
