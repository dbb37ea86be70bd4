"""What is refused when a program is loaded, each with the name of its handler."""

from typing import Any, cast

import pytest

from rota import Applied, NotApplied, Prepare, Reservation, Rota, Workflow, cron, every, mutation, read
from rota.core.errors import Invalid, LogicError
from rota.db.connection import Database
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.runner import WorkflowRunner


async def poll(ctx: Any, state: Any) -> None: ...


class Take:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        return Prepare()


def with_producer(**more: Any) -> Workflow:
    flow = Workflow("w", topics=["in"])
    flow.consumer(subscribe=["in"])(Take)
    flow.producer(**{"schedule": every("5m"), "publishes": ["in"], **more})(poll)
    return flow


def with_consumer(cls: Any, **more: Any) -> Workflow:
    flow = Workflow("w", topics=["in", "out"])
    flow.consumer(**{"subscribe": ["in"], **more})(cls)
    return flow


class Nothing: ...


class Sync:
    def prepare(self, ctx: Any, state: Any) -> Prepare:
        return Prepare()


class Next(Take):
    async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> None: ...


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (Workflow("w", topics=["in"]), "workflow w: None has no producer and no consumer"),
        (with_producer(publishes=[]), "workflow w, producer poll: [] is empty"),
        (with_producer(publishes=["nope"]), "workflow w, producer poll: 'nope' is not a topic"),
        (with_producer(schedule=every("5 minutes")), "workflow w, producer poll: '5 minutes' must be a span"),
        (with_producer(schedule=every("-5m")), "workflow w, producer poll: '-5m' must be a span"),
        (with_producer(schedule=every("1.5h")), "workflow w, producer poll: '1.5h' must be a span"),
        (with_producer(schedule=cron("61 * * * *")), "workflow w, producer poll: '61 * * * *'"),
        (with_producer(schedule=cron("0 0 31 2 *")), "workflow w, producer poll: '0 0 31 2 *' names a day"),
        (with_producer(schedule=cron("0 9 * * *", "Mars/Base")), "workflow w, producer poll: 'Mars/Base'"),
        (with_producer(schedule="5m"), "workflow w, producer poll: '5m' is not a schedule"),
        (with_consumer(Take, subscribe=[]), "workflow w, consumer Take: [] is empty"),
        (with_consumer(Take, subscribe=["nope"]), "workflow w, consumer Take: 'nope' is not a topic"),
        (with_consumer(Nothing), "workflow w, consumer Nothing: 'prepare' is not defined"),
        (with_consumer(Sync), "workflow w, consumer Sync: 'prepare' is not an async function"),
        (with_consumer(Take, publishes=["in"]), "workflow w, consumer Take: ['in'] is published nowhere"),
        (with_consumer(Next, publishes=["out"]), "workflow w, consumer Next: 'out' is published, but no consumer"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_name_of_its_handler(flow: Workflow, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        WorkflowRunner({"w": flow}, Connectors(), cast(Database, None))
    assert message in caught.value.message
    if flow.handlers:
        with pytest.raises(Invalid, match="workflow w"):
            Rota().workflow(flow)


def test_all_errors_of_a_declaration_are_reported_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        Rota().workflow(with_producer(publishes=["a", "b"], schedule=every("x")))
    assert len(caught.value.all) == 3


def test_names_are_taken_once() -> None:
    app = Rota()
    app.workflow(with_producer())
    with pytest.raises(Invalid, match="declared twice"):
        app.workflow(with_producer())
    with pytest.raises(Invalid, match="name of two handlers"):
        with_producer().consumer(subscribe=["in"])(Take)


def test_the_version_changes_with_the_code() -> None:
    class Other(Take):
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(title="other")

    same, again = with_consumer(Take, name="x"), with_consumer(Take, name="x")
    assert same.version == again.version
    assert with_consumer(Other, name="x").version != same.version
    assert with_consumer(Take, name="x", subscribe=["out"]).version != same.version


def test_reservations_may_come_as_a_list() -> None:
    dumped = Prepare(reservations=[Reservation("a", ["1"]), Reservation("a", ["2"])]).dump()
    assert dumped["reservations"] == {"a": ["1", "2"]}


def test_connectors_say_what_their_methods_do() -> None:
    class Service:
        @read
        def look(self) -> int:
            return 1

        @mutation(reconcile="find")
        def act(self, idempotency_key: str) -> str:
            return idempotency_key

        def find(self, key: str, params: Any) -> Applied | NotApplied:
            return NotApplied()

        def neither(self) -> None: ...

    class Lost:
        @mutation(reconcile="nowhere")
        def act(self) -> None: ...

    known = Connectors()
    known.add("service", Service())
    assert sorted(known.methods) == ["service.act", "service.look"]
    with pytest.raises(LogicError, match="not a method of a connector"):
        known.find("service.neither")
    with pytest.raises(Invalid, match="declared twice"):
        known.add("service", Service())
    with pytest.raises(Invalid, match="no method of it"):
        known.add("lost", Lost())
    with pytest.raises(Invalid, match="no method marked"):
        known.add("object", object())
