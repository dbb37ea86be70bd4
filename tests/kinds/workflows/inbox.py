"""The workflow that most tests use: mail is polled, each becomes a row in a sheet, each row is acknowledged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rota import Applied, NotApplied, Prepare, Rota, Unsure, Workflow, every, mutation, read


@dataclass
class Sheets:
    """Service whose calls raise `fails` before the effect, `breaks` after it."""

    rows: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    breaks: list[Exception] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)  # of reconcile; if empty, it searches for the key
    asked: int = 0

    @read
    async def count(self) -> int:
        return len(self.rows)

    @mutation(reconcile="find")
    async def append(self, row: Any, idempotency_key: str) -> dict[str, int]:
        if self.fails:
            raise self.fails.pop(0)
        self.rows.append(row)
        self.keys.append(idempotency_key)
        if self.breaks:
            raise self.breaks.pop(0)
        return {"row": len(self.rows)}

    async def find(self, idempotency_key: str, params: dict[str, Any]) -> Applied | NotApplied | Unsure:
        self.asked += 1
        assert set(params) == {"row"}
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            outcome: Applied | NotApplied | Unsure = answer
            return outcome
        return Applied({"row": "found"}) if idempotency_key in self.keys else NotApplied()

    @mutation
    async def blind(self, row: Any) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.rows.append(row)
        if self.breaks:
            raise self.breaks.pop(0)


@dataclass
class Inbox:
    """A program that records the calls of its handlers."""

    app: Rota = field(default_factory=Rota)
    sheets: Sheets = field(default_factory=Sheets)
    mail: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    mutations: list[Any] = field(default_factory=list)
    notified: list[Any] = field(default_factory=list)
    trouble: dict[str, list[Exception]] = field(default_factory=dict)
    during: Callable[[str], Any] = lambda step: None

    async def step(self, name: str) -> None:
        self.calls.append(name)
        pending = self.during(name)
        if pending is not None:
            await pending
        if self.trouble.get(name):
            raise self.trouble[name].pop(0)

    def count(self, name: str) -> int:
        return self.calls.count(name)


def make_inbox(call: str = "sheets.append", **options: Any) -> Inbox:
    inbox = Inbox()
    flow = Workflow("inbox", topics=["mail", "rows"], **options)

    @flow.producer(schedule=every("5m"), publishes=["mail"])
    async def poll(ctx: Any, state: Any) -> Any:
        await inbox.step("poll")
        seen = state or 0
        for position, text in enumerate(inbox.mail[seen:], seen):
            await ctx.publish("mail", message_id=str(position), payload=text, title=f"mail {text}")
        return len(inbox.mail)

    @flow.consumer(subscribe=["mail"], publishes=["rows"])
    class AddRow:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            await inbox.step("prepare")
            waiting = await ctx.peek("mail", limit=1)
            first = waiting[0] if waiting else None
            return Prepare(
                reservations={"mail": [event.id for event in waiting]},
                data=first and first.payload,
                title=first and f"row for {first.payload}",
            )

        async def mutate(self, ctx: Any, prepared: Prepare) -> None:
            await inbox.step("mutate")
            await ctx.call(call, row=prepared.data)

        async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> Any:
            await inbox.step("next")
            inbox.mutations.append((prepared.data, outcome.status, outcome.result))
            if prepared.data is not None:
                await ctx.publish("rows", message_id=f"row-{prepared.data}", payload=prepared.data)
            return {"last": prepared.data}

    @flow.consumer(subscribe=["rows"])
    class Notify:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            await inbox.step("notify")
            waiting = await ctx.peek("rows")
            inbox.notified += [event.payload for event in waiting]
            return Prepare(reservations={"rows": [event.id for event in waiting]})

    inbox.app.workflow(flow)
    inbox.app.connector("sheets", inbox.sheets)
    return inbox


def broken_step(*_: Any) -> None:
    """Raise an error as a defect in Rota would."""
    raise KeyError("a bug")
