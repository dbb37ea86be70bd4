"""Services for running tasks: save artifacts, enqueue and follow other jobs.

Async functions await their methods; in sync functions, which run in threads, the same call returns the value.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import LogicError, short_repr
from rota.core.ids import new_id
from rota.core.kinds import DEFAULT_KIND
from rota.core.states import Status
from rota.db.paging import Record
from rota.engine import artifact_contents, artifact_files
from rota.engine.artifacts import JSON
from rota.engine.commands import Engine
from rota.reports import jobs as job_reports
from rota.user_code import frames

LIVE_STATUSES = (Status.PENDING, Status.RUNNING)
CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)
FIRST_POLL_SECONDS = 0.05  # between polls of a job's status; doubled up to a second


class Serializer(Protocol):
    """Serialises values of some type to the bytes of an artifact."""

    content_type: str

    def fits(self, value: object) -> bool: ...

    def dump(self, value: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class BuiltInSerializer:
    """A serializer of three functions."""

    content_type: str
    fits: Callable[[object], bool]
    dump: Callable[[Any], bytes]


def is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


# The methods of services return the value in a thread, and an awaitable of it on an event loop.
Result = Any

BUILT_IN = (
    BuiltInSerializer("application/octet-stream", is_bytes, bytes),
    BuiltInSerializer(frames.PARQUET, frames.is_frame, frames.to_parquet),
)


class LoopBridge:
    """Runs coroutines on the event loop that it was made on, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def result_of(self, coroutine: Coroutine[object, None, object]) -> Result:
        """Return the coroutine on an event loop; in another thread run it on the loop, and return its result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        return coroutine


@dataclass
class ArtifactManager(LoopBridge):
    """Saves and reads artifacts of a run."""

    engine: Engine
    org_id: str
    run_id: str | None = None
    serializers: Sequence[Serializer] = ()
    labels: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def save(
        self, data: object, *, parent: str | None = None, label: str | None = None, content_type: str | None = None
    ) -> Result:
        """Store a value below the run's artifact or `parent`; returns its id. Text and bytes are stored as they are,
        data frames as Parquet, other values as JSON. Raises LogicError if it is too large or not serialisable."""
        return self.result_of(self.store(data, parent or self.run_id, label, content_type))

    def save_file(
        self,
        path: str | Path,
        *,
        parent: str | None = None,
        label: str | None = None,
        content_type: str = "application/octet-stream",
    ) -> Result:
        """Store a file as `save` does its content, and return the artifact's id. A large one is streamed to the object
        store. Raises LogicError if it is too large or cannot be read."""
        return self.result_of(self.insert(Path(path), parent or self.run_id, label, content_type))

    def load_file(self, artifact_id: str, path: str | Path) -> Result:
        """Write the content of an artifact to a file, in parts, and return its size. The file is complete or does not
        exist. Raises NotFound, LogicError if it cannot be written."""
        return self.result_of(artifact_files.write(self.engine, self.org_id, artifact_id, Path(path)))

    def find(self, artifact_id: str) -> Result:
        """Return an artifact with its data."""
        return self.result_of(artifact_contents.find(self.engine, self.org_id, artifact_id))

    def tree(self, artifact_id: str) -> Result:
        """Return an artifact with its descendants."""
        return self.result_of(artifact_contents.find_tree(self.engine, self.org_id, artifact_id))

    async def store(self, data: object, parent: str | None, label: str | None, content_type: str | None) -> str:
        """Store a value below `parent`; without one, as a root."""
        if frames.is_frame(data):  # takes long for a large one
            own_type, content = await asyncio.to_thread(self.serialise, data)
        else:
            own_type, content = self.serialise(data)
        return await self.insert(content, parent, label, content_type or own_type)

    async def insert(self, source: bytes | Path, parent: str | None, label: str | None, content_type: str) -> str:
        """Store bytes or the content of a file below `parent`."""
        if not CONTENT_TYPE.fullmatch(content_type):
            raise LogicError(f"{short_repr(content_type)} is not a content type like text/plain; charset=utf-8")
        row = {
            "id": new_id(), "org_id": self.org_id, "run_id": self.run_id, "parent_id": parent, "label": label,
            "content_type": content_type, "created_at": self.engine.clock.now(),
        }  # fmt: skip
        await artifact_contents.save(self.engine, row, self.labels, source)
        return str(row["id"])

    def serialise(self, data: object) -> tuple[str, bytes]:
        serializer = self.serializer(data)
        if serializer is not None:
            return serializer.content_type, serializer.dump(data)
        if isinstance(data, str):
            return "text/plain; charset=utf-8", data.encode("utf-8", "backslashreplace")
        try:
            return JSON, orjson.dumps(data)
        except TypeError as error:
            raise LogicError(f"a {type(data).__name__} cannot be saved as an artifact: {error}") from error

    def serializer(self, data: object) -> Serializer | BuiltInSerializer | None:
        """Return the serializer of a value; None for text and JSON."""
        serializers: tuple[Serializer | BuiltInSerializer, ...] = (*self.serializers, *BUILT_IN)
        return next((serializer for serializer in serializers if serializer.fits(data)), None)


@dataclass
class JobScheduler(LoopBridge):
    """Enqueues jobs of other tasks, and follows them."""

    engine: Engine
    org_id: str

    def __post_init__(self) -> None:
        super().__init__()

    def add_job(self, task: str | Callable[..., object], **params: object) -> Result:
        """Enqueue a job; returns its id."""
        name = task if isinstance(task, str) else task.__name__
        return self.result_of(self._add(name, params))

    def get_status(self, job_id: str) -> Result:
        """`pending`, `running`, `success`, `failed`, …"""
        return self.result_of(self._status(job_id))

    def cancel(self, job_id: str) -> Result:
        """Cancel a job; returns its id. Raises Conflict if it has ended."""
        return self.result_of(self.engine.cancel(self.org_id, job_id, by="a task"))

    def wait(self, job_id: str, timeout: float | None = None) -> Result:
        """Wait until a job has ended; returns its status. Raises TimeoutError."""
        return self.result_of(self._wait(job_id, timeout))

    async def _add(self, task: str, params: Mapping[str, object]) -> str:
        return (await self.engine.enqueue(self.org_id, DEFAULT_KIND, task, [dict(params) or None]))[0]

    async def _status(self, job_id: str) -> str:
        return str((await self._job(job_id))["status"])

    async def _job(self, job_id: str) -> Record:
        return await self.engine.db.read(job_reports.job, self.org_id, job_id)

    async def _wait(self, job_id: str, limit: float | None) -> str:
        """Poll until the job has ended; one that sleeps or waits within its run has not."""
        since, poll_seconds = stopwatch(), FIRST_POLL_SECONDS
        while (job := await self._job(job_id))["status"] in LIVE_STATUSES or job["waiting"] is not None:
            if limit is not None and stopwatch() - since > limit:
                raise TimeoutError(f"job {job_id} is still {job['status']} after {limit:g} s")
            await real_sleep(poll_seconds)
            poll_seconds = min(poll_seconds * 2, 1.0)
        return str(job["status"])
