"""The Runner port: what a kind of work implements, and the context and log of a run. The engine owns timing; work runs
only behind a Runner."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

from rota.core.clock import stopwatch
from rota.core.errors import LogicError
from rota.core.log_handlers import other_handlers
from rota.core.model import Attempt, AttemptResult, Job, RunInfo
from rota.core.policy import Failure, Retry, parse_retry
from rota.core.policy import WorkFailed as WorkFailed
from rota.core.redact import redacted_text
from rota.core.schedule_form import Defaults
from rota.core.steps import NO_DUE_TIME, Suspension
from rota.db.dialect import Tx
from rota.engine import durable_waits, effect_steps
from rota.engine.durable import Durable
from rota.engine.step_calls import Caller
from rota.engine.step_errors import parse_wait

if TYPE_CHECKING:
    from rota.engine.commands import Engine

LOG_LIMIT = 1024 * 1024  # characters of one run's log that are kept, half of them from its end
LINE_LIMIT = 16 * 1024
MAX_ISOLATED_RUNS = 4  # child processes at once: of jobs that may have killed a worker, and of tasks with isolation
LogLine = tuple[str, datetime, str, str]  # run id, time, stream, text


# Executes a run and returns its outcome as JSON, or `Written`. When canceled, it stops everything it started,
# then raises.
Work = Callable[[], Awaitable[object]]
Prepare = Callable[["RunContext"], Awaitable[Work]]


class Runner(Protocol):
    """Implements one kind of work."""

    kind: str
    under_grant: bool  # its schedules always run under a grant; creating a schedule without a grant mints one

    @property
    def defaults(self) -> Defaults | None:
        """The default policies of its schedules; None if it cannot be scheduled or enqueued by users."""
        ...

    def routes(self) -> Collection[str]:
        """Return the routes of the jobs that this process can run."""
        ...

    async def resolve(self, org_id: str, target: str, payload: object) -> str:
        """Return the route of a target. Raises Invalid if the target is unknown or the payload does not fit it."""
        ...

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:
        """Return the names by which a grant may allow work on a target."""
        ...

    async def prepare(self, ctx: "RunContext") -> "Work":
        """Look up what will run, describe it in `ctx.info` and return it. Raises Skipped where it may not run now."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A kind of work that reacts to the end of its attempts."""

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        """Called inside the transaction that records these results, so that both commit together."""
        ...


@runtime_checkable
class Learns(Protocol):
    """A kind of work whose routes depend on rows of the database."""

    async def learn(self) -> bool:
        """Read those rows again; returns whether the routes of this process changed."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A kind of work that keeps processes or connections between runs."""

    async def close(self) -> None:
        """Close them, when no run is left."""
        ...


@dataclass(slots=True)
class RunContext:
    """A run as its work sees it: its job, log, cancellation and engine."""

    job: Job
    run_id: str
    attempt: int
    worker: str
    log: "RunLog"
    isolated: bool = False  # its job crashed a worker: run it in a child process
    cancel_grace: timedelta = timedelta(seconds=10)
    info: RunInfo = field(default_factory=RunInfo)
    _engine: "Engine | None" = None
    canceled: "StopFlag" = field(default_factory=lambda: StopFlag())
    has_room: Callable[[], bool] = lambda: False  # whether its worker has a free place: no other job waits for it
    started_at: datetime = NO_DUE_TIME
    suspension: Suspension | None = None  # why it leaves its worker; set by a wait
    caller: Caller | None = None  # of its function; None for work that is no function
    _durable: Durable | None = None
    heartbeat_at: float = 0.0  # by the stopwatch: when it last called `heartbeat`
    forward_heartbeat: Callable[[], None] | None = None  # in a child process: to the worker

    def heartbeat(self) -> None:
        """Report that the run makes progress. A run of a task with `heartbeat=…` that does not call this in time is
        stopped. Any thread may call it."""
        self.heartbeat_at = stopwatch()
        if self.forward_heartbeat is not None:
            self.forward_heartbeat()

    @property
    def org_id(self) -> str:
        return self.job.org_id

    @property
    def engine(self) -> "Engine":
        """The engine, for services that are injected into the work."""
        assert self._engine is not None
        return self._engine

    @property
    def slot(self) -> datetime | None:
        return self.job.slot

    @property
    def fence(self) -> int:
        """Rises with every attempt of a serial key: pass it to systems that can refuse an older fence."""
        return self.job.fence

    # durable tasks: these methods return an awaitable in async functions, and block in sync ones

    @property
    def durable(self) -> Durable:
        """The steps of this run. Raises LogicError for work that has none."""
        if self._durable is None:
            if self.caller is None:
                raise LogicError("steps are for tasks that are Python functions")
            self._durable = Durable(self, self.caller)
        return self._durable

    async def finish_steps(self) -> None:
        """Wait for steps that go on beside the code. Raises the error of a step that ends the run, also if its code
        caught it."""
        if self._durable is not None:
            await self._durable.finish()

    def step(
        self,
        name: str,
        function: Callable[..., object],
        *args: object,
        retry: Retry | Mapping[str, object] | None = None,
        timeout: timedelta | str | float | None = None,
        **kwargs: object,
    ) -> Any:
        """Call a function and record its result, JSON, under a name that is unique in this run. Once it is recorded, it
        is returned without a call. Raises StepFailed, which is also of the class of the function's error."""
        limit = None if timeout is None else parse_wait(timeout, "timeout")
        rule = retry if isinstance(retry, Retry) else parse_retry(retry)
        return self.durable.step(name, partial(function, *args, **kwargs), rule, limit)

    def sleep(self, duration: timedelta | str | float, *, name: str | None = None) -> Any:
        """Wait, for at most 366 days, without holding the worker: `ctx.sleep("3d")`."""
        return self.durable.sleep(duration, name)

    def effect(
        self,
        name: str,
        function: Callable[..., object],
        *args: object,
        reconcile: Callable[..., object] | None = None,
        timeout: timedelta | str | float | None = None,
        **kwargs: object,
    ) -> Any:
        """Call a function that changes a system outside. It is recorded before it is called, and not repeated while its
        outcome is unknown: then `reconcile(idempotency_key, params)` is asked, or a person. The function gets
        `idempotency_key` if it has that parameter."""
        limit = None if timeout is None else parse_wait(timeout, "timeout")
        return effect_steps.effect(self.durable, name, function, args, kwargs, reconcile, limit)

    def wait_for(
        self,
        topic: str,
        *,
        key: str | None = None,
        timeout: timedelta | str | float | None = None,
        name: str | None = None,
    ) -> Any:
        """Wait for a signal without holding the worker; returns its payload. Raises TimeoutError."""
        return durable_waits.wait_for(self.durable, topic, key, timeout, name)

    def approval(
        self,
        who: str,
        *,
        title: str | None = None,
        timeout: timedelta | str | float | None = None,
        name: str | None = None,
    ) -> Any:
        """Wait for the decision of a person: `operator`, an e-mail address, or what keys have as `approve:WHO`. Returns
        an `Approval`. Raises TimeoutError."""
        return durable_waits.approval(self.durable, who, title, timeout, name)

    def call(self, task: str, /, **params: object) -> Any:
        """Enqueue a task as a child of this job and wait for it; returns its result. Raises ChildFailed."""
        return durable_waits.call_task(self.durable, task, params, None)

    def spawn(self, task: str, /, **params: object) -> Any:
        """Enqueue a task as a child of this job; returns a handle with `job_id` and `result()`."""
        return durable_waits.spawn(self.durable, task, params, None)

    def map(
        self, task: str, items: Sequence[Mapping[str, object]], *, at_most: int = 50, name: str | None = None
    ) -> Any:
        """Run a task as a child for the parameters of each item, at most so many at a time; returns their results."""
        return durable_waits.map_task(self.durable, task, items, at_most, name)


class StopFlag:
    """Whether a stop of the run was requested. Its `threading.Event` is created only when a thread waits for it."""

    __slots__ = ("_event", "_set")
    _making = threading.Lock()

    def __init__(self) -> None:
        self._set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._making:
            self._set = True
            if self._event is not None:
                self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        with self._making:
            if self._event is None:
                self._event = threading.Event()
            if self._set:
                return True
        return self._event.wait(timeout)


class RunLog:
    """The log of one run: lines on their way to the database, capped to a head and a tail. Any thread may write."""

    _making = threading.Lock()
    _own: "threading.Lock | None" = None
    _spoken: tuple[str, str] = ("", "")  # a stream and what came on it since the last look
    _head_room = LOG_LIMIT // 2
    _tail_size = 0
    _dropped = 0

    def __init__(self, run_id: str, now: Callable[[], datetime], job: Job | None = None) -> None:
        self.run_id, self.job = run_id, job
        self._now = now

    @property
    def _lock(self) -> "threading.Lock":
        """The lock, created with the buffers on the first write: most runs write nothing."""
        if self._own is None:
            with self._making:
                if self._own is None:  # another thread may have been faster
                    self._ready: list[LogLine] = []
                    self._tail: deque[LogLine] = deque()
                    self._partial: dict[str, str] = {}
                    self._own = threading.Lock()  # last: a thread that sees it finds the rest set
        return self._own

    def write(self, stream: str, text: str) -> None:
        """Append text; complete lines are logged, the rest is kept until its line ends."""
        with self._lock:
            *lines, rest = (self._partial.get(stream, "") + text).split("\n")
            while len(rest) > LINE_LIMIT:
                lines.append(rest[:LINE_LIMIT])
                rest = rest[LINE_LIMIT:]
            self._partial[stream] = rest
            for line in lines:
                self._add(stream, line)

    def line(self, stream: str, text: str) -> None:
        with self._lock:
            self._speak_out()
            self._add(stream, text)

    def speak(self, stream: str, text: str) -> None:
        """Append text of a stream that is shown as it comes, with its line ends; stored as one entry each time
        `take` is called."""
        with self._lock:
            if self._spoken[0] != stream or len(self._spoken[1]) + len(text) > LINE_LIMIT:
                self._speak_out()
            while len(text) > LINE_LIMIT:
                self._add(stream, text[:LINE_LIMIT])
                text = text[LINE_LIMIT:]
            self._spoken = (stream, self._spoken[1] + text)

    def take(self, last: bool = False) -> list[LogLine]:
        """Return the entries to store now; with `last` also the tail and incomplete lines."""
        if self._own is None:
            return []
        with self._lock:
            self._speak_out()
            if last:
                for stream, rest in self._partial.items():
                    if rest:
                        self._add(stream, rest)
                self._partial.clear()
                if self._dropped:
                    note = f"… {self._dropped} characters left out …"
                    self._ready.append((self.run_id, self._now(), "system", note))
                self._ready.extend(self._tail)
                self._tail.clear()
            ready, self._ready = self._ready, []
            return ready

    def _speak_out(self) -> None:
        (stream, text), self._spoken = self._spoken, ("", "")
        if text:
            self._add(stream, text)

    def _add(self, stream: str, text: str) -> None:
        entry = (self.run_id, self._now(), stream, storable(redacted_text(text[:LINE_LIMIT])))
        size = len(entry[3]) + 1
        if self._head_room > 0:
            self._head_room -= size
            self._ready.append(entry)
            return
        self._tail.append(entry)
        self._tail_size += size
        while self._tail_size > LOG_LIMIT // 2:
            gone = len(self._tail.popleft()[3]) + 1
            self._tail_size -= gone
            self._dropped += gone


def storable(text: str) -> str:
    """Return the text with NUL and halves of surrogate pairs replaced: no database stores them."""
    return text.replace("\0", "␀").encode("utf-8", "backslashreplace").decode()


current_log: ContextVar[RunLog | None] = ContextVar("current_log", default=None)


class Capture:
    """Replaces stdout or stderr: output of a run goes to its log, all other output to the real stream."""

    def __init__(self, stream: str, real: TextIO) -> None:
        self._stream, self._real = stream, real

    def write(self, text: str) -> int:
        run_log = current_log.get()
        if run_log is None:
            return self._real.write(text)
        run_log.write(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class LogHandler(logging.Handler):
    """Sends `logging` records of a run to its log. Others go where they would without this handler."""

    def emit(self, record: logging.LogRecord) -> None:
        run_log = current_log.get()
        if run_log is not None:
            run_log.line("log", f"{record.levelname} {record.name}: {self.format(record)}")
        elif (
            (last := logging.lastResort) is not None
            and record.levelno >= last.level
            and not other_handlers(record.name, LogHandler)
        ):
            last.handle(record)


def capture_output() -> None:
    """Send the output of runs in this process to their logs from now on. Idempotent."""
    if not isinstance(sys.stdout, Capture):
        sys.stdout = Capture("stdout", sys.stdout)
        sys.stderr = Capture("stderr", sys.stderr)
        handler = LogHandler()
        logging.getLogger().addHandler(handler)
        if logging.getLogger().level > logging.INFO or logging.getLogger().level == logging.NOTSET:
            logging.getLogger().setLevel(logging.INFO)


class Skipped(Exception):
    """The work may not run now: the attempt ends as skipped."""

    def __init__(self, reason: str, failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.reason, self.failure = reason, failure


class Busy(Exception):
    """There is no room where the work would run. The job returns to the queue for `delay`; no run is recorded."""

    def __init__(self, message: str, delay: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.delay = delay


class SetAside(Exception):
    """The job may not begin now and is back in the queue; no run is recorded."""


@dataclass(frozen=True, slots=True)
class Written:
    """Returned by work that stored its result itself, in the transaction that committed its effects. `then` is
    the next attempt, if it began one in the same transaction; `prepare` replaces that of its runner."""

    ended: AttemptResult
    then: Attempt | None = None
    prepare: Prepare | None = None


class Canceled(Exception):
    """The work was stopped, but not by its worker."""

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.by = by


class ChildCrashed(Exception):
    """The child process of an isolated run died."""


Runners = Mapping[str, Runner]
