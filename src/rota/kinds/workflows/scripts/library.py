"""Script workflows: declared in one uploaded Python file, run in the sandbox."""

from collections import OrderedDict
from collections.abc import Mapping

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.policy import choice
from rota.db.connection import Database
from rota.engine.org_limit import OrgLimit
from rota.kinds.workflows.declaration import Call, Workflow
from rota.kinds.workflows.rules import REPAIR_MODES, HandlerKind
from rota.kinds.workflows.scripts import store
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.kinds.workflows.scripts.script_api import STEPS, Context, Mutation, Prepare

CACHED_VERSIONS = 100  # in the memory of a worker
CONCURRENT_CHECKS, CONCURRENT_CHECKS_PER_ORG = 4, 2  # scripts that a process loads at once to read declarations


class Scripts:
    """Loads scripts, and caches the declarations of live versions by workflow and version."""

    def __init__(self, sandbox: Sandbox, db: Database) -> None:
        self.sandbox, self.db = sandbox, db
        self.checks = OrgLimit(CONCURRENT_CHECKS, CONCURRENT_CHECKS_PER_ORG)
        self.cache: OrderedDict[tuple[str, str], Workflow] = OrderedDict()

    async def declared_in(self, source: str, org_id: str) -> Workflow:
        """Return what a script of an org declares, checked like a program's workflow. Raises Invalid."""
        async with self.checks.place(org_id):
            declared = await self.sandbox.declare(source)
        workflow = self.workflow(declared, ("", ""), source)
        workflow.check()
        return workflow

    async def live(self, org_id: str, name: str) -> Workflow:
        """Return the live version of a workflow. Raises NotFound."""
        row, version = await self.db.read(store.live, org_id, name)
        assert version.source is not None  # a live version has its file
        key = (row.id, row.version)
        if key not in self.cache:
            self.cache[key] = self.workflow({**row.declaration, "name": row.name}, key, version.source)
        self.cache.move_to_end(key)
        if len(self.cache) > CACHED_VERSIONS:
            self.cache.popitem(last=False)
        return self.cache[key]

    def workflow(self, declaration: Mapping[str, object], key: tuple[str, str], source: str) -> Workflow:
        """Return the workflow of an untrusted declaration. Raises Invalid."""
        workflow = Workflow(
            parse.name(declaration.get("name"), "workflow"),
            topics=texts(declaration, "topics"),
            description=parse.text(declaration.get("description") or "", "description", 2000),
            isolate=parse.flag(declaration.get("isolate"), "isolate"),
            version=key[1] or "0",
            connectors=texts(declaration, "connectors"),
            repair=parse.one_of(declaration.get("repair"), "repair", list(REPAIR_MODES)),
        )
        handlers = declaration.get("handlers")
        for handler in handlers if isinstance(handlers, list) else ():
            if not isinstance(handler, Mapping):
                raise Invalid("handlers", handler, "is not a handler")
            name, kind = parse.name(handler.get("name"), "handler"), choice(HandlerKind, handler.get("type"), "type")
            names = texts(handler, "steps")
            for step in names:
                parse.one_of(step, "steps", ["produce"] if kind is HandlerKind.PRODUCER else list(STEPS))
            steps = {step: self.proxy(key, source, name, step) for step in names}
            schedule = parse.payload(handler.get("schedule"), "schedule")
            workflow._add(name, kind, steps, texts(handler, "publishes"), texts(handler, "subscribe"), schedule)
        return workflow

    def proxy(self, key: tuple[str, str], source: str, handler: str, step: str) -> Call:
        """Return a step that runs in the sandbox; its requests go to the run's host, as those of a step in this
        process."""

        async def call(ctx: Context, *args: object) -> object:
            params = [dump_argument(arg) for arg in args]
            result = await self.sandbox.call(key, source, handler, step, params, ctx.now, ctx._ask)
            match result.get("prepared"):
                case {"reservations": reservations, "data": data, "wake_at": wake_at, "title": title}:
                    title = None if title is None else parse.text(title, "title", 500)
                    return Prepare(reservations, data, wake_at, title)
                case _:
                    return result.get("returned")

        return call


def dump_argument(value: object) -> object:
    match value:
        case Prepare():
            return value.dump()
        case Mutation(status, result):
            return {"status": status, "result": result}
        case _:
            return value


def texts(fields: Mapping[str, object], name: str) -> list[str]:
    """Return a field that is a list of texts. Raises Invalid."""
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise Invalid(name, value, "is not a list of texts")
    return value
