"""Workflows that people upload as one Python file: declared like those of a program, run in the sandbox."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.policy import choice
from rota.db.connection import Database
from rota.engine.org_limit import OrgLimit
from rota.kinds.workflows.declaration import STEPS, Call, Mutation, Prepare, Workflow
from rota.kinds.workflows.handler_host import Context
from rota.kinds.workflows.rules import REPAIR_HOW, HandlerKind
from rota.kinds.workflows.scripts import store
from rota.kinds.workflows.scripts.sandbox import Sandbox

KNOWN = 100  # versions that a worker keeps at hand
CHECKS, CHECKS_PER_ORG = 4, 2  # scripts that a process loads at once, to see what they declare


class Scripts:
    """The scripts that this worker has met, by workflow and version."""

    def __init__(self, sandbox: Sandbox, db: Database) -> None:
        self.sandbox, self.db = sandbox, db
        self.checks = OrgLimit(CHECKS, CHECKS_PER_ORG)
        self.known: OrderedDict[tuple[str, str], Workflow] = OrderedDict()

    async def declared_in(self, source: str, org_id: str) -> Workflow:
        """What a script of an org declares, checked like a program's workflow. Raises Invalid."""
        async with self.checks.place(org_id):
            declared = await self.sandbox.declare(source)
        workflow = self.workflow(declared, ("", ""), source)
        workflow.check()
        return workflow

    async def live(self, org_id: str, name: str) -> Workflow:
        """The version of a workflow that runs now."""
        flow, version = await self.db.read(store.live, org_id, name)
        key = (flow.id, flow.version)
        if key not in self.known:
            self.known[key] = self.workflow({**flow.declaration, "name": flow.name}, key, version.source)
        self.known.move_to_end(key)
        if len(self.known) > KNOWN:
            self.known.popitem(last=False)
        return self.known[key]

    def workflow(self, told: Mapping[str, Any], key: tuple[str, str], source: str) -> Workflow:
        """From what a script said about itself, which may be anything."""
        flow = Workflow(
            parse.name(told.get("name"), "workflow"), topics=texts(told, "topics"),
            description=parse.text(told.get("description") or "", "description", 2000),
            isolate=parse.flag(told.get("isolate"), "isolate"), version=key[1] or "0",
            connectors=texts(told, "connectors"), repair=parse.one_of(told.get("repair"), "repair", list(REPAIR_HOW)),
        )  # fmt: skip
        found = told.get("handlers")
        for one in found if isinstance(found, list) else ():
            if not isinstance(one, Mapping):
                raise Invalid("handlers", one, "is not a handler")
            name, kind = parse.name(one.get("name"), "handler"), choice(HandlerKind, one.get("type"), "type")
            wanted = texts(one, "steps")
            for step in wanted:
                parse.one_of(step, "steps", ["produce"] if kind is HandlerKind.PRODUCER else list(STEPS))
            steps = {step: self.proxy(key, source, name, step) for step in wanted}
            named = {word: texts(one, word) for word in ("subscribe", "publishes")}
            schedule = parse.payload(one.get("schedule"), "schedule")
            flow._add(name, kind, steps, **named, schedule=schedule, connectors=flow.connectors)
        return flow

    def proxy(self, key: tuple[str, str], source: str, handler: str, step: str) -> Call:
        """A step that is done in the sandbox. What it asks for is asked of the run's host, as in this process."""

        async def call(ctx: Context, *args: Any) -> Any:
            given = [plain(one) for one in args]
            found = await self.sandbox.call(key, source, handler, step, given, ctx.now, ctx._host.ask)
            match found.get("prepared"):
                case {"reservations": reservations, "data": data, "wake_at": wake_at, "title": title}:
                    title = None if title is None else parse.text(title, "title", 500)
                    return Prepare(reservations, data, wake_at, title)
                case _:
                    return found.get("returned")

        return call


def plain(value: Any) -> Any:
    match value:
        case Prepare():
            return value.dump()
        case Mutation(status, result):
            return {"status": status, "result": result}
        case _:
            return value


def texts(told: Mapping[str, Any], word: str) -> list[str]:
    found = told.get(word)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Invalid(word, found, "is not a list of texts")
    return found
