"""Streams: a client sees every event once, and misses none if it reconnects with the last id."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from rota import Rota, RunContext
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult
from rota.core.states import Status
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import logs
from rota.engine import claiming, finishing, runs
from rota.kinds.workflows.store import workflow_runs
from rota.testing import world
from tests.app.live_api import LiveApi
from tests.kinds.workflows.inbox import broken_step, make_inbox

Event = tuple[str, str, Any]
SOON = 20  # seconds that anything may take at the most


@pytest.fixture
def live(clean_url: str) -> Iterator[LiveApi]:
    with LiveApi(clean_url) as live:
        yield live


@pytest.fixture
async def db(live: LiveApi) -> AsyncIterator[Database]:
    db = open_database(live.database_url)
    yield db
    await db.close()


@pytest.fixture
async def client(live: LiveApi) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{live.url}/api/v1", headers=live.headers, timeout=SOON) as client:
        made = await client.post("/schedules", json={"name": "nightly", "target": "hello", "interval": "1h"})
        assert made.status_code == 201
        yield client


async def read(
    client: httpx.AsyncClient, path: str, enough: Callable[[list[Event]], bool] | None = None, last: str | None = None
) -> list[Event]:
    """Events until there are enough, or the stream ends by itself."""
    seen: list[Event] = []
    headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
    async with asyncio.timeout(SOON), client.stream("GET", path, headers=headers) as stream:
        assert stream.status_code == 200, await stream.aread()
        fields: dict[str, str] = {}
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                seen.append((fields["event"], fields["id"], orjson.loads(fields["data"])))
                fields = {}
                if enough is not None and enough(seen):
                    break
    return seen


def ended_in(seen: list[Event]) -> set[str]:
    return {data["id"] for name, _, data in seen if name == "run.ended"}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not true():  # noqa: ASYNC110  another thread makes it true
            await asyncio.sleep(0.05)


async def begin(db: Database) -> list[Attempt]:
    """Take what is ready and begin it, as a worker would."""

    def step(tx: Tx) -> list[Attempt]:
        taken = claiming.claim(tx, claiming.lanes(tx), worker=new_id(), routes=["task:default:hello"], room=100, turn=0)
        begun = [Attempt(job, new_id(), job.attempt + 1, datetime.now(UTC)) for job in taken]
        finishing.mark_started(tx, begun)
        return begun

    return await db.tx(step)


async def end(db: Database, begun: list[Attempt], at: datetime | None = None) -> None:
    now = at or datetime.now(UTC)
    ended = [
        AttemptResult(attempt.job, Status.SUCCESS, None, now, attempt.run_id, attempt.number, attempt.started_at)
        for attempt in begun
    ]
    await db.tx(finishing.finish, ended, None, now)


async def run(client: httpx.AsyncClient) -> str:
    answer = await client.post("/schedules/nightly/$run", json={"overlap": "allow"})
    return str(answer.json()["job_id"])


async def test_a_log_is_streamed_until_its_run_ends(client: httpx.AsyncClient, db: Database) -> None:
    await run(client)
    (begun,) = await begin(db)
    write = [(begun.run_id, datetime.now(UTC), "stdout", f"line {number}") for number in range(5)]
    await db.tx(runs.write_logs, write[:2])
    following = asyncio.ensure_future(read(client, f"/runs/{begun.run_id}/logs"))
    await asyncio.sleep(0.5)
    await db.tx(runs.write_logs, write[2:4])
    await asyncio.sleep(0.3)
    await end(db, [begun])
    await db.tx(runs.write_logs, write[4:])  # written just after the end
    seen = await following
    assert [data["text"] for name, _, data in seen if name == "log"] == [f"line {number}" for number in range(5)]
    assert seen[-1][0] == "end"
    assert seen[-1][2] == {"run_id": begun.run_id, "status": "success"}
    again = await read(client, f"/runs/{begun.run_id}/logs", last=seen[2][1])
    assert {data["text"] for name, _, data in again if name == "log"} >= {"line 3", "line 4"}


async def test_a_line_that_is_committed_late_is_still_streamed(client: httpx.AsyncClient, db: Database) -> None:
    """Ids are drawn before the commit: a smaller one may appear after a greater one."""
    await run(client)
    (begun,) = await begin(db)
    now = datetime.now(UTC)

    async def write(number: int) -> None:
        values = {"id": number, "run_id": begun.run_id, "at": now, "stream": "stdout", "text": str(number)}
        await db.tx(insert_rows, logs, [values])

    await write(1000)
    following = asyncio.ensure_future(read(client, f"/runs/{begun.run_id}/logs"))
    await asyncio.sleep(1)
    await write(999)
    await asyncio.sleep(1)
    await end(db, [begun])
    assert [data["id"] for name, _, data in await following if name == "log"] == [1000, 999]
    again = await read(client, f"/runs/{begun.run_id}/logs", last="1000")
    assert 999 in [data["id"] for name, _, data in again if name == "log"]


async def test_the_stream_of_a_job_has_each_of_its_statuses(client: httpx.AsyncClient, db: Database) -> None:
    job_id = await run(client)
    following = asyncio.ensure_future(read(client, f"/jobs/{job_id}/$stream"))
    await asyncio.sleep(0.4)
    await end(db, await begin(db))
    seen = await following
    assert [data["status"] for _, _, data in seen] == ["pending", "running", "success"]
    assert [name for name, _, _ in seen] == ["status"] * 3
    again = await read(client, f"/jobs/{job_id}/$stream", last=seen[0][1])
    assert again == seen[1:]
    assert (await client.get("/jobs/unknown/$stream")).status_code == 404


async def test_the_org_hears_what_changes(client: httpx.AsyncClient, db: Database) -> None:
    opened = asyncio.Event()

    def enough(seen: list[Event]) -> bool:
        opened.set()
        return seen[-1][0] == "schedule.deleted"

    following = asyncio.ensure_future(read(client, "/events", enough))
    await opened.wait()
    await client.post("/schedules", json={"name": "other", "target": "hello", "interval": "1h"})
    await run(client)
    begun = await begin(db)
    await asyncio.sleep(1)
    await end(db, begun)
    await client.patch("/schedules/other", json={"description": "x"})
    await asyncio.sleep(1)
    await client.delete("/schedules/other")
    seen = await following
    assert [name for name, _, _ in seen] == [
        "open",
        "schedule.created",
        "run.started",
        "run.ended",
        "schedule.changed",
        "schedule.deleted",
    ]
    ended = seen[3][2]
    assert (ended["id"], ended["status"]) == (begun[0].run_id, "success")


async def test_the_org_hears_of_the_freeze_and_of_queues(client: httpx.AsyncClient) -> None:
    opened = asyncio.Event()

    def enough(seen: list[Event]) -> bool:
        opened.set()
        return seen[-1][0] == "freeze.off"

    following = asyncio.ensure_future(read(client, "/events", enough))
    await opened.wait()
    for method, path, body in (
        ("PATCH", "/queues/slow", {"max_running": 5}),
        ("PATCH", "/queues/slow", {"paused": True}),
        ("PUT", "/freeze", {"reason": "why"}),
        ("DELETE", "/freeze", None),
    ):
        assert (await client.request(method, path, json=body)).is_success
    seen = await following
    assert [name for name, _, _ in seen] == ["open", "queue.changed", "queue.changed", "freeze.on", "freeze.off"]
    assert [data["name"] for _, _, data in seen[1:3]] == ["slow", "slow"]
    assert seen[2][2]["after"]["paused"] is True
    assert seen[3][2]["after"]["reason"] == "why"


async def test_the_stream_of_an_org_has_only_its_own_hosts(client: httpx.AsyncClient, live: LiveApi) -> None:
    """Pairing a machine, its agent coming up and again, in this org and in another one."""

    async def agent(key: str) -> str:
        headers = {"authorization": f"Bearer {key}"}
        token = (await client.post("/pairing-tokens", headers=headers)).json()["token"]
        paired = (await client.post(f"{live.url}/api/agent/pair", json={"token": token, "name": "alpha"})).json()
        facts = {"version": "1", "pid": 7, "room": 1, "job_types": {}, "journal": []}
        for _ in range(2):
            own = {"authorization": f"Bearer {paired['agent_key']}"}
            answer = await client.post(f"{live.url}/api/agent/register", json=facts, headers=own)
            assert answer.status_code == 200, answer.text
        assert (await client.patch(f"/hosts/{paired['host_id']}", json={"labels": {}}, headers=headers)).is_success
        return str(paired["host_id"])

    other = (await client.post("/orgs", json={"name": "Acme", "slug": "acme"})).json()["admin_key"]
    opened = asyncio.Event()

    def enough(seen: list[Event]) -> bool:
        opened.set()
        return [name for name, _, _ in seen].count("host.changed") == 2

    following = asyncio.ensure_future(read(client, "/events", enough))
    await opened.wait()
    await agent(other)
    own_agent = await agent(live.headers["authorization"].removeprefix("Bearer "))
    seen = [(name, data) for name, _, data in await following if name != "open"]
    assert sorted(name for name, _ in seen) == ["host.changed", "host.changed", "host.down", "host.up", "host.up"]
    assert {data["host_id"] for name, data in seen if name != "host.changed"} == {own_agent}
    assert {data["name"] for name, data in seen if name == "host.changed"} == {own_agent}


async def test_steps_and_approvals_are_streamed_to_their_org(client: httpx.AsyncClient, live: LiveApi) -> None:
    app = Rota()

    @app.task
    async def pay(ctx: RunContext) -> None:
        await ctx.step("read", int)
        await ctx.approval("operator", title="Pay 3 €")
        await ctx.step("write", int)

    acme = (await client.post("/orgs", json={"name": "Acme", "slug": "acme"})).json()["admin_key"]
    own_open, other_open, log_open = asyncio.Event(), asyncio.Event(), asyncio.Event()
    requested_open = asyncio.Event()

    def until_event(opened: asyncio.Event, name: str) -> Callable[[list[Event]], bool]:
        def enough(seen: list[Event]) -> bool:
            opened.set()
            return seen[-1][0] == name

        return enough

    async with (
        world(app, database_url=live.database_url, start=datetime.now(UTC)) as rota,
        httpx.AsyncClient(base_url=client.base_url, headers={"authorization": f"Bearer {acme}"}, timeout=SOON) as other,
    ):
        await rota.drain()
        own = asyncio.ensure_future(read(client, "/events", until_event(own_open, "approval.decided")))
        others = asyncio.ensure_future(read(other, "/events", until_event(other_open, "queue.changed")))
        request = asyncio.ensure_future(read(client, "/events", until_event(requested_open, "approval.requested")))
        await asyncio.gather(own_open.wait(), other_open.wait(), requested_open.wait())
        job_id = (await client.post("/jobs", json={"target": "pay"})).json()["job_id"]
        rota.clock.set(datetime.now(UTC))
        await rota.advance(seconds=1)
        (run_id,) = (await client.get(f"/jobs/{job_id}")).json()["run_ids"]
        log_stream = asyncio.ensure_future(read(client, f"/runs/{run_id}/logs", until_event(log_open, "end")))
        async with asyncio.timeout(SOON):
            await log_open.wait()
        await request  # a request that is decided before the stream looks again is no event
        assert (await client.post(f"/runs/{run_id}/$approve", json={"comment": "yes"})).status_code == 202
        await rota.advance(seconds=1)
        seen, log_events = await own, await log_stream
        assert (await other.patch("/queues/slow", json={"paused": True})).is_success
        other_names = [name for name, _, _ in await others]

    (requested,) = [data for name, _, data in seen if name == "approval.requested"]
    assert {name: requested[name] for name in ("job_id", "run_id", "name", "who")} == {
        "job_id": job_id, "run_id": run_id, "name": "approval operator", "who": "operator",
    }  # fmt: skip
    decided = seen[-1][2]
    assert (decided["action"], decided["name"]) == ("runs.approve", run_id)
    progress = [data for name, _, data in log_events if name == "steps"]
    assert (progress[0]["job_id"], progress[0]["steps"], progress[0]["ended"]) == (job_id, 2, 1)
    assert (progress[-1]["steps"], progress[-1]["ended"]) == (3, 3)
    assert log_events[-1][2] == {"run_id": run_id, "status": "success"}
    assert other_names == ["open", "queue.changed"]


async def test_a_workflow_that_rota_itself_failed_stops_and_says_so_everywhere(
    client: httpx.AsyncClient, live: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, inbox = asyncio.Event(), make_inbox()

    def enough(seen: list[Event]) -> bool:
        opened.set()
        return seen[-1][0] == "workflow.stopped"

    async with world(inbox.app, database_url=live.database_url, start=datetime.now(UTC)) as rota:
        await rota.drain()
        following = asyncio.ensure_future(read(client, "/events", enough))
        await opened.wait()
        rota.clock.set(datetime.now(UTC))
        with capture_logs() as lines, monkeypatch.context() as broken:
            broken.setattr(workflow_runs, "save_decision", broken_step)
            await client.post("/workflows/inbox/topics/mail/events", json={"message_id": "1", "payload": "a"})
            await rota.advance(seconds=1)
        (stopped,) = [data for name, _, data in await following if name == "workflow.stopped"]
        errors = [line for line in lines if line["log_level"] == "error"]
        assert "a workflow stopped because Rota failed internally" in {line["event"] for line in errors}
        assert (stopped["name"], stopped["reason"]) == ("inbox", "internal")
        run = (await client.get(f"/runs/{stopped['id']}")).json()
        assert (run["status"], run["reason"], run["phase"]) == ("failed", "internal", "preparing")
        shown = (await client.get("/workflows/inbox")).json()
        assert (shown["status"], shown["attention"]) == ("needs_attention", 1)
        assert shown["issue"].startswith("Rota failed internally: KeyError: 'a bug'; resume it to retry")
        await rota.advance(hours=1)
        assert inbox.sheets.rows == []
        assert (await client.post("/workflows/inbox/$resume")).status_code == 200
        await rota.advance(seconds=1)
        assert inbox.sheets.rows == ["a"]


async def test_a_reconnected_client_misses_no_event(client: httpx.AsyncClient, db: Database) -> None:
    """Runs end all the time, some written down late; the client goes away after every few events."""
    total = 60
    for _ in range(total):
        await run(client)
    begun = await begin(db)
    assert len(begun) == total
    (_, position, _), *_ = await read(client, "/events", lambda _: True)

    async def work() -> None:
        for number in range(0, total, 5):
            late = timedelta(seconds=2 if number % 2 else 0)
            await end(db, begun[number : number + 5], datetime.now(UTC) - late)
            await asyncio.sleep(0.05)

    working = asyncio.ensure_future(work())
    wanted = {attempt.run_id for attempt in begun}
    seen: set[str] = set()

    def enough(got: list[Event]) -> bool:
        return len(ended_in(got) - seen) >= 7 or wanted <= ended_in(got) | seen

    while not wanted <= seen:
        part = await read(client, "/events", enough, last=position)
        seen |= ended_in(part)
        positions = [int(position) for _, position, _ in part]
        assert positions == sorted(positions)
        assert positions[0] == int(position)
        position = part[-1][1]
    await working


async def test_a_stream_ends_with_its_key_and_its_server(live: LiveApi, client: httpx.AsyncClient) -> None:
    following = asyncio.ensure_future(read(client, "/events"))
    await until(lambda: live.app.state.streams == 1)
    live.app.state.closing = True
    assert [name for name, _, _ in await following] == ["open"]
    await until(lambda: live.app.state.streams == 0)  # nothing is left behind


async def test_a_client_that_goes_leaves_nothing_behind(live: LiveApi, client: httpx.AsyncClient) -> None:
    for _ in range(5):
        await read(client, "/events", lambda _: True)
    await until(lambda: live.app.state.streams == 0)


async def test_an_odd_position_is_refused(client: httpx.AsyncClient) -> None:
    for odd in ("x", "-1", "9" * 30, "1.5"):
        answer = await client.get("/events", headers={"last-event-id": odd})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Last-Event-ID")
