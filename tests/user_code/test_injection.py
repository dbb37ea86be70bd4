"""What a function is called with: its parameters, checked; and things of the program, by their type."""

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Optional

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import event, func, select, text

from rota import ArtifactManager, AsyncSession, Database, JobScheduler, RunContext, tables
from rota.core.errors import Invalid, InvalidMany
from rota.user_code.injection import Injector
from tests.kinds.tasks.harness import TaskHarness


class Client:
    """Something of the user's own."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class AsyncClient(Client):
    async def aclose(self) -> None:
        self.close()


# Rota's own


async def test_a_session_is_injected_and_asks_rotas_tables(harness: TaskHarness) -> None:
    @harness.program.task
    async def count(session: AsyncSession) -> int:
        return int((await session.execute(select(func.count()).select_from(tables.tasks))).scalar_one())

    assert (await harness.run(count))["outcome"] == 1


async def test_parameters_and_injected_values_mix_under_any_name(harness: TaskHarness) -> None:
    @harness.program.task
    async def mixed(limit: int, whatever: AsyncSession, scale: float = 2.0) -> dict[str, Any]:
        return {"limit": limit * scale, "one": (await whatever.execute(text("SELECT 1"))).scalar_one()}

    assert (await harness.run(mixed, limit=50))["outcome"] == {"limit": 100.0, "one": 1}


async def test_every_run_has_its_own_session_that_is_always_closed(harness: TaskHarness) -> None:
    seen: list[AsyncSession] = []
    waiting = asyncio.Event()

    @harness.program.task
    async def ask(session: AsyncSession, again: AsyncSession, how: str = "well") -> None:
        assert again is session
        seen.append(session)
        await session.execute(text("SELECT 1"))
        assert session.in_transaction()
        if how == "badly":
            raise ValueError("no")
        if how == "never":
            waiting.set()
            await asyncio.Event().wait()

    await harness.run(ask)
    database = harness.program.injector.process.values[Database]
    out: list[Any] = []
    pool = database.session().bind.sync_engine.pool
    event.listen(pool, "checkout", lambda _, record, *__: out.append(record))
    event.listen(pool, "checkin", lambda _, record: out.remove(record))
    assert (await harness.run(ask, how="badly"))["reason"] == "logic"
    await asyncio.gather(*(harness.engine.enqueue(harness.org_id, "task", "ask", [None]) for _ in range(20)))
    await harness.work()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", "ask", [{"how": "never"}])
    await harness.claim()
    await asyncio.wait_for(waiting.wait(), 10)
    assert len(out) == 1
    harness.worker.active[job_id].stop("operator")
    await harness.work()
    assert out == []
    assert len({id(session) for session in seen}) == 23
    assert not any(session.in_transaction() for session in seen)


async def test_a_session_that_is_left_open_keeps_no_worker_from_writing(harness: TaskHarness) -> None:
    """A SQLite file has one writer, so a session writes to a separate file."""
    writing, done = asyncio.Event(), asyncio.Event()

    @harness.program.task
    async def write(session: AsyncSession) -> int:
        await session.execute(text("CREATE TABLE IF NOT EXISTS users_own (x INT)"))
        await session.execute(text("INSERT INTO users_own VALUES (1)"))
        writing.set()
        await done.wait()
        await session.execute(text("DROP TABLE users_own"))
        return int((await session.execute(select(func.count()).select_from(tables.tasks))).scalar_one())

    await harness.declare()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", "write", [None])
    await harness.claim()
    await asyncio.wait_for(writing.wait(), 5)
    async with asyncio.timeout(2):  # a writer would wait longer for a lock
        await harness.store("echo hi", task_type="shell")
    done.set()
    await harness.work()
    run = await harness.last_run(job_id)
    assert (run["status"], run["outcome"]) == ("success", 2)


async def test_rotas_own_tables_cannot_be_written_through_a_session_on_sqlite(harness: TaskHarness) -> None:
    @harness.program.task
    async def vandal(session: AsyncSession) -> None:
        await session.execute(text("DELETE FROM rota.tasks"))

    run = await harness.run(vandal)
    if harness.db.url.startswith("sqlite"):
        assert "readonly" in run["error"]["message"]


async def test_the_database_makes_sessions_and_is_the_same_for_all_runs(harness: TaskHarness) -> None:
    seen: list[Database] = []

    @harness.program.task
    async def ask(database: Database) -> int:
        seen.append(database)
        async with database.session() as session:
            return int((await session.execute(text("SELECT 42"))).scalar_one())

    assert [(await harness.run(ask))["outcome"], (await harness.run(ask))["outcome"]] == [42, 42]
    assert seen[0] is seen[1]


async def test_artifacts_are_saved_below_the_run(harness: TaskHarness) -> None:
    @harness.program.task
    async def keep(artifacts: ArtifactManager) -> list[str]:
        parent = await artifacts.save({"rows": 3}, label="table")
        child = await artifacts.save("some text", parent=parent)
        assert (await artifacts.find(child))["data"] == "some text"
        return [parent, child]

    run = await harness.run(keep)
    parent, child = run["outcome"]
    tree = await ArtifactManager(harness.engine, harness.org_id).tree(run["id"])
    (first,) = tree["children"]
    assert (first["id"], first["level"], first["label"]) == (parent, 1, "table")
    (second,) = first["children"]
    assert (second["id"], second["level"], second["label"]) == (child, 2, "level_2")
    assert second["children"] == []


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_content_type_that_no_header_can_carry_is_refused(harness: TaskHarness) -> None:
    @harness.program.task
    async def keep(artifacts: ArtifactManager) -> None:
        await artifacts.save("x", content_type="text/plain\r\nset-cookie: a=b")

    assert "is not a content type" in (await harness.run(keep))["error"]["message"]


async def test_a_job_can_make_follow_and_stop_others(harness: TaskHarness) -> None:
    @harness.program.task
    async def helper(x: int) -> int:
        return x

    @harness.program.task
    async def boss(scheduler: JobScheduler) -> list[str]:
        first = await scheduler.add_job(helper, x=1)
        second = await scheduler.add_job("helper", x=2)
        with pytest.raises(Invalid, match=r"input\.x"):
            await scheduler.add_job("helper")
        with pytest.raises(TimeoutError, match="still pending"):
            await scheduler.wait(first, timeout=0)
        await scheduler.cancel(second)
        return [first, await scheduler.get_status(first), await scheduler.get_status(second)]

    first, before, stopped = (await harness.run(boss))["outcome"]
    assert (before, stopped) == ("pending", "canceled")
    assert (await harness.last_run(first))["outcome"] == 1
    assert await JobScheduler(harness.engine, harness.org_id).wait(first) == "success"


async def test_the_context_and_a_logger_are_injected(
    harness: TaskHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.program.task
    async def describe(ctx: RunContext, log: logging.Logger) -> list[Any]:
        log.warning("here I am")
        ctx.log.line("log", "and here")
        return [ctx.run_id, ctx.attempt, ctx.org_id, log.name]

    run = await harness.run(describe)
    assert run["outcome"] == [run["id"], 1, harness.org_id, "rota.task.describe"]
    assert "here I am" in caplog.text
    assert "and here" in await harness.logs(run)


async def test_plain_functions_use_managers_in_their_threads(harness: TaskHarness) -> None:
    @harness.program.task
    def work(x: int, artifacts: ArtifactManager, scheduler: JobScheduler) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        saved = artifacts.save(b"\x00\x01")
        job_id = scheduler.add_job("work", x=x - 1) if x else None
        return {"data": artifacts.find(saved)["content_type"], "next": job_id and scheduler.get_status(job_id)}

    run = await harness.run(work, x=1)
    assert run["outcome"] == {"data": "application/octet-stream", "next": "pending"}


# users' own


def factories(made: list[Client]) -> dict[str, Callable[..., Any]]:
    def plain() -> Client:
        made.append(Client())
        return made[-1]

    async def awaited() -> Client:
        made.append(AsyncClient())
        return made[-1]

    def generator() -> Iterator[Client]:
        yield plain()
        # a value that a generator made is closed by the generator
        made[-1].close()

    async def async_generator() -> AsyncIterator[Client]:
        yield await awaited()
        made[-1].close()

    return {"plain": plain, "awaited": awaited, "generator": generator, "async_generator": async_generator}


@pytest.mark.parametrize("how", ["plain", "awaited", "generator", "async_generator"])
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_provided_thing_is_made_for_each_run_and_closed_once(harness: TaskHarness, how: str) -> None:
    made: list[Client] = []
    harness.program.provide(Client, factories(made)[how])

    @harness.program.task
    async def use(client: Client, fail: bool = False) -> None:
        assert client is made[-1]
        assert not client.closed
        if fail:
            raise ValueError("no")

    assert (await harness.run(use))["status"] == "success"
    assert (await harness.run(use, fail=True))["status"] == "failed"
    assert [client.closed for client in made] == [1, 1]


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_thing_of_the_process_is_made_once_even_if_many_want_it_at_once(harness: TaskHarness) -> None:
    made: list[Client] = []

    async def slowly() -> Client:
        await asyncio.sleep(0.01)
        made.append(Client())
        return made[-1]

    harness.program.provide(Client, slowly, scope="process")

    @harness.program.task
    async def use(client: Client) -> int:
        return id(client)

    await harness.declare()
    await harness.engine.enqueue(harness.org_id, "task", "use", [None] * 10)
    await harness.work()
    assert len(made) == 1
    assert made[0].closed == 0
    await harness.program.injector.process.close()
    assert made[0].closed == 1


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_factory_that_failed_is_asked_again(harness: TaskHarness) -> None:
    tries = iter([True, False])

    def first_fails() -> Client:
        if next(tries):
            raise ConnectionError("not yet")
        return Client()

    harness.program.provide(Client, first_fails, scope="process")

    @harness.program.task
    def use(client: Client) -> str:
        return "used"

    first = await harness.run(use)
    assert (first["status"], first["reason"]) == ("paused", "transient")
    assert (await harness.run(use))["outcome"] == "used"


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_factories_want_injected_things_themselves(harness: TaskHarness) -> None:
    class Settings:
        size = 3

    class Service:
        def __init__(self, settings: Settings, ctx: RunContext, retries: int = 2) -> None:
            self.received = (settings.size, ctx.attempt, retries)

    harness.program.provide(Settings, Settings, scope="process")
    harness.program.provide(Service, Service)

    @harness.program.task
    def use(service: Service) -> list[int]:
        return list(service.received)

    assert (await harness.run(use))["outcome"] == [3, 1, 2]
    assert {Settings, Service, AsyncSession, RunContext} <= harness.program.injectables


def test_a_factory_with_an_unknown_dependency_is_rejected() -> None:
    def needy(other: Client) -> AsyncClient:
        return AsyncClient()

    with pytest.raises(Invalid, match=r"other: .*Client.* cannot be injected into the factory of AsyncClient"):
        Injector().provide(AsyncClient, needy)
    with pytest.raises(Invalid, match="scope: 'day' is not one of run, process"):
        Injector().provide(Client, Client, scope="day")


def test_a_thing_of_the_process_cannot_keep_a_thing_of_a_run() -> None:
    def make_client(session: AsyncSession) -> Client:
        return Client()

    with pytest.raises(Invalid, match=r"session: .* is closed with its run; Client would outlive it"):
        Injector().provide(Client, make_client, scope="process")


# optional


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_optional_things_are_injected_too(harness: TaskHarness) -> None:
    @harness.program.task
    async def maybe(
        value: int,
        one: AsyncSession | None = None,
        two: Optional[Database] = None,  # noqa: UP045
        three: Annotated[RunContext | None, "why not"] = None,
        text: str | None = None,
    ) -> list[bool]:
        return [one is not None, two is not None, three is not None, text is not None]

    assert (await harness.run(maybe, value=1))["outcome"] == [True, True, True, False]
    assert (await harness.run(maybe, value=1, text="x"))["outcome"] == [True, True, True, True]


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_an_injected_parameter_cannot_be_given(harness: TaskHarness) -> None:
    @harness.program.task
    async def use(session: AsyncSession) -> None: ...

    with pytest.raises(Invalid, match=r"input\.session: 'mine' is not a parameter of this task"):
        await harness.run(use, session="mine")


# parameters


class Order(BaseModel):
    item: str
    amount: Annotated[int, Field(ge=1)] = 1


def buy(order: Order, day: str, *rest: int, tags: list[str] | None = None) -> dict[str, Any]:
    return {"item": order.item, "amount": order.amount, "day": day, "tags": tags, "rest": rest}


def reported(error: Invalid) -> list[tuple[str, str]]:
    return [(problem.field, problem.right) for problem in error.all]


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_wrong_parameters_are_named_before_anything_runs(harness: TaskHarness) -> None:
    harness.program.task(buy)
    with pytest.raises(InvalidMany) as caught:
        await harness.run(buy, order={"item": "pen", "amount": "many"}, extra=1, tags="x")
    assert reported(caught.value) == [
        ("input.order.amount", "does not fit: input should be a valid integer, unable to parse string as an integer"),
        ("input.day", "is missing"),
        ("input.tags", "does not fit: input should be a valid list"),
        ("input.extra", "is not a parameter of this task"),
    ]
    assert await harness.queue() == []
    with pytest.raises(Invalid, match="input: 'pen' is not an object of parameters"):
        await harness.engine.enqueue(harness.org_id, "task", "buy", ["pen"])


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_values_become_what_the_signature_says(harness: TaskHarness) -> None:
    harness.program.task(buy)
    run = await harness.run(buy, order={"item": "pen", "amount": "3"}, day="monday")
    assert run["outcome"] == {"item": "pen", "amount": 3, "day": "monday", "tags": None, "rest": []}


def test_the_schema_has_parameters_types_and_defaults() -> None:
    def task(a: int, b: str = "x", *, session: AsyncSession, when: Any = Client, ctx: RunContext) -> None: ...

    schema = Injector().signature(task).schema()
    assert schema["properties"].keys() == {"a", "b", "when"}
    assert schema["properties"]["a"] == {"title": "A", "type": "integer"}
    assert schema["properties"]["b"] == {"title": "B", "type": "string", "default": "x"}
    assert "default" not in schema["properties"]["when"]
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] is False


def test_a_function_with_open_keywords_takes_anything() -> None:
    def task(a: int, **rest: Any) -> None: ...

    signature = Injector().signature(task)
    assert signature.check({"a": "1", "b": 2}, "input") == {"a": 1, "b": 2}
    with pytest.raises(Invalid, match=r"input\.a is missing"):
        signature.check({"b": 2}, "input")


def test_what_can_never_be_called_is_refused_with_the_way_out() -> None:
    def by_position(a: int, /) -> None: ...
    def strange(client: Client) -> None: ...
    def unknown(client: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    injector = Injector()
    with pytest.raises(Invalid, match="'by_position' takes a by position only; parameters are passed by name"):
        injector.signature(by_position)
    with pytest.raises(Invalid, match=r"'strange' has a parameter that is neither JSON nor provided: .*Client"):
        injector.signature(strange)
    with pytest.raises(Invalid, match="'unknown' has a type hint that cannot be read: name 'Nowhere' is not defined"):
        injector.signature(unknown)
    injector.provide(Client, Client)
    assert injector.signature(strange).injected == {"client": Client}


async def test_a_signature_is_analysed_once(harness: TaskHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    @harness.program.task
    def work(x: int, database: Database) -> int:
        return x

    await harness.declare()
    looked: list[Any] = []
    real = inspect.signature

    def look(function: Any, **how: Any) -> inspect.Signature:
        looked.append(function)
        return real(function, **how)

    monkeypatch.setattr(inspect, "signature", look)
    await harness.engine.enqueue(harness.org_id, "task", "work", [{"x": 1}] * 5)
    await harness.work()
    assert work not in looked
    assert await harness.history("work") == ["manual #1 success"] * 5


# in a process of its own


async def test_an_isolated_function_is_injected_in_its_process(isolated_harness: TaskHarness) -> None:
    harness = isolated_harness
    run = await harness.run("look", limit="5")
    assert run["status"] == "success", run["error"]
    outcome = run["outcome"]
    assert (outcome["limit"], outcome["run"]) == (5, run["id"])
    assert outcome["tasks"] == len(harness.program.registry.list_all())
    artifacts = ArtifactManager(harness.engine, harness.org_id)
    assert (await artifacts.find(outcome["saved"]))["data"] == {"pid": outcome["pid"]}
    assert set(await harness.logs(run)) == {
        "opened for attempt 1",
        "closed",
        "pool closed",
        "INFO rota.task.look: looking",
        "logged",
    }


async def test_an_isolated_plain_function_makes_jobs(isolated_harness: TaskHarness) -> None:
    run = await isolated_harness.run("hire")
    assert (await isolated_harness.last_run(run["outcome"]))["outcome"] == 4


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_without_a_named_program_the_functions_own_file_is_it(isolated_harness: TaskHarness) -> None:
    isolated_harness.runner.app = None
    run = await isolated_harness.run("look", limit=1)
    assert run["status"] == "success", run["error"]


async def test_the_artifact_limit_holds_in_an_isolated_process(isolated_harness: TaskHarness) -> None:
    run = await isolated_harness.run("too_large")
    assert run["error"]["message"] == "the artifact has 1001 bytes; at most 1000 are allowed (ROTA_MAX_ARTIFACT_MB)"
