"""What a running task may ask of Rota: save artifacts, make more jobs.

Their methods are awaited in async functions; in plain functions, which run in threads, the same call just answers.
"""

import asyncio
import importlib
import io
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import LogicError, short_repr
from rota.core.ids import new_id
from rota.core.states import Status
from rota.engine import artifacts
from rota.engine import reports as engine_reports
from rota.engine.artifacts import JSON
from rota.engine.commands import Engine

LIVING = (Status.PENDING, Status.RUNNING)
CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)
LOOK = 0.05  # seconds between looks at a job that is waited for; doubled up to a second


class Serializer(Protocol):
    """How values of some type become the bytes of an artifact."""

    content_type: str

    def fits(self, value: Any) -> bool: ...

    def dump(self, value: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Plain:
    content_type: str
    fits: Callable[[Any], bool]
    dump: Callable[[Any], bytes]


def to_parquet(value: Any) -> bytes:
    """A pandas or Arrow table; whoever made one has the library that writes it."""
    out = io.BytesIO()
    if hasattr(value, "to_parquet"):
        value.to_parquet(out)
    else:
        importlib.import_module("pyarrow.parquet").write_table(value, out)
    return out.getvalue()


def is_table(value: Any) -> bool:
    known = (("pandas", "DataFrame"), ("pyarrow", "Table"))  # looked up, not imported: most programs have neither
    return any(isinstance(value, getattr(sys.modules[module], name)) for module, name in known if module in sys.modules)


BUILT_IN = (
    Plain("application/octet-stream", lambda value: isinstance(value, bytes | bytearray | memoryview), bytes),
    Plain("application/vnd.apache.parquet", is_table, to_parquet),
)


class Bridge:
    """Answers on the event loop that it was made on, whichever thread asks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def ask(self, answer: Coroutine[Any, Any, Any]) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(answer, self._loop).result()
        return answer


@dataclass
class ArtifactManager(Bridge):
    """Saves what a run leaves behind, below the run's own artifact or another one."""

    engine: Engine
    org_id: str
    run_id: str | None = None
    serializers: Sequence[Serializer] = ()
    labels: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def save(
        self, data: Any, *, parent: str | None = None, label: str | None = None, content_type: str | None = None
    ) -> Any:
        """Store a value; answers with the artifact's id. Text and bytes are kept as they are, tables as Parquet, what
        else there is as JSON."""
        return self.ask(self.store(data, parent or self.run_id, label, content_type))

    def find(self, artifact_id: str) -> Any:
        """An artifact with its data."""
        return self.ask(self.engine.db.read(artifacts.get, self.org_id, artifact_id))

    def tree(self, artifact_id: str) -> Any:
        """An artifact with all that hangs below it."""
        return self.ask(self.engine.db.read(artifacts.tree, self.org_id, artifact_id))

    async def store(self, data: Any, parent: str | None, label: str | None, content_type: str | None) -> str:
        """As `save`, exactly there: without a parent it is a root."""
        kind, content = self.dumped(data)
        if content_type is not None and not CONTENT_TYPE.fullmatch(content_type):
            raise LogicError(f"{short_repr(content_type)} is not a content type; it is like text/plain; charset=utf-8")
        limit = self.engine.settings.artifact_limit
        if len(content) > limit:
            raise LogicError(f"an artifact of {len(content)} bytes is too large; at most {limit} are kept")
        row = {
            "id": new_id(), "org_id": self.org_id, "run_id": self.run_id, "parent_id": parent, "label": label,
            "content_type": content_type or kind, "content": content, "created_at": self.engine.clock.now(),
        }  # fmt: skip
        await self.engine.db.tx(artifacts.insert, row, self.labels)
        return str(row["id"])

    def dumped(self, data: Any) -> tuple[str, bytes]:
        serializer = self.serializer(data)
        if serializer is not None:
            return serializer.content_type, serializer.dump(data)
        if isinstance(data, str):
            return "text/plain; charset=utf-8", data.encode("utf-8", "backslashreplace")
        try:
            return JSON, orjson.dumps(data)
        except TypeError as error:
            raise LogicError(f"a {type(data).__name__} cannot be saved as an artifact: {error}") from error

    def serializer(self, data: Any) -> Serializer | Plain | None:
        """Who writes values that are not plain JSON."""
        known: tuple[Serializer | Plain, ...] = (*self.serializers, *BUILT_IN)
        return next((one for one in known if one.fits(data)), None)


@dataclass
class JobScheduler(Bridge):
    """Makes jobs of other tasks, and follows them."""

    engine: Engine
    org_id: str

    def __post_init__(self) -> None:
        super().__init__()

    def add_job(self, task: str | Callable[..., Any], **params: Any) -> Any:
        """Make a job at once; answers with its id."""
        name = task if isinstance(task, str) else task.__name__
        return self.ask(self._add(name, params))

    def get_status(self, job_id: str) -> Any:
        """`pending`, `running`, `success`, `failed`, …"""
        return self.ask(self._status(job_id))

    def cancel(self, job_id: str) -> Any:
        """Stop a job; answers with its id. One that has ended is a Conflict."""
        return self.ask(self.engine.cancel(self.org_id, job_id, by="a task"))

    def wait(self, job_id: str, timeout: float | None = None) -> Any:
        """Wait until a job has ended; answers with its status. Raises TimeoutError."""
        return self.ask(self._wait(job_id, timeout))

    async def _add(self, task: str, params: Mapping[str, Any]) -> str:
        return (await self.engine.enqueue(self.org_id, "task", task, [dict(params) or None]))[0]

    async def _status(self, job_id: str) -> str:
        return str((await self.engine.db.read(engine_reports.job, self.org_id, job_id))["status"])

    async def _wait(self, job_id: str, patience: float | None) -> str:
        since, look = stopwatch(), LOOK
        while (status := await self._status(job_id)) in LIVING:
            if patience is not None and stopwatch() - since > patience:
                raise TimeoutError(f"job {job_id} is still {status} after {patience:g} s")
            await real_sleep(look)
            look = min(look * 2, 1.0)
        return status
