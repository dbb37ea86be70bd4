"""Wake-ups of the loops of a process: work is ready, a due time changed, a cancel was requested.

A wake-up is a hint. Every loop also polls, so a lost wake-up costs latency, never work.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator

import asyncpg
import structlog

from rota.core.clock import real_sleep, stopwatch
from rota.db.connection import Database
from rota.db.dialect import CHANNEL
from rota.db.driver_errors import DRIVER_ERRORS
from rota.db.sqlite import SqliteDatabase
from rota.db.sqlite_wakeups import COUNTED_TOPICS, watch_writes

BURST_SECONDS = 0.005  # between reads while notifications keep coming
FILE_POLL_SECONDS = 0.02  # where the system has no inotify
PENDING_COMMIT_SECONDS = (0.01, 30.0)  # first wait for the commit of a caller's transaction on SQLite, and for how long
EVENT_OF_TOPIC = {
    "ready": "work",
    "later": "clock",
    "clocks": "clock",
    "cancel": "cancel",
    "taken": "changed",
    "access": "changed",
}
ACCESS_TOPICS = ("access", "anything")  # a key, a role or a user may have changed

log = structlog.get_logger("rota.wake")


class Wake:
    """The events that the loops of one process wait for. Belongs to one event loop."""

    def __init__(self, forward: Callable[[str], None] | None = None) -> None:
        self._forward = forward  # to the loops of another thread of this process
        self.work = asyncio.Event()
        self.clock = asyncio.Event()
        self.cancel = asyncio.Event()
        self.task_changes = 0  # rises whenever a task may have changed
        self.access_changes = 0  # rises whenever a key, a role or a user may have changed
        self.changed = asyncio.Event()  # replaced after each signal, so that any number can wait for the next one

    def signal(self, topic: str) -> None:
        """Wake the loops of a topic; an unknown topic wakes all of them."""
        for event in self._events(topic):
            event.set()
        self.task_changes += topic not in EVENT_OF_TOPIC
        self.notify_followers(topic)
        if self._forward is not None:
            self._forward(topic)

    def notify_followers(self, topic: str = "taken") -> None:
        """Wake everything that waits for `changed`, and count changes of access."""
        self.access_changes += topic in ACCESS_TOPICS
        self.changed.set()
        self.changed = asyncio.Event()

    async def listen(self, db: Database) -> None:
        """Receive the notifications of other processes, for ever. Failures are logged and retried."""
        while True:
            try:
                await (self._watch_file(db) if isinstance(db, SqliteDatabase) else self._listen_channel(db.url))
            except Exception:
                log.exception("listening for wake-ups failed; trying again")
                await real_sleep(1)

    def _events(self, topic: str) -> Iterator[asyncio.Event]:
        event = EVENT_OF_TOPIC.get(topic)
        yield from [getattr(self, event)] if event else [self.work, self.clock, self.cancel]

    async def _watch_file(self, db: SqliteDatabase) -> None:
        counters = db.write_lock.counters
        known, mark, notified_at = counters.of_others(), counters.mark(), 0.0
        looking: asyncio.Task[None] | None = None
        written = asyncio.Event()
        db.on_notify = self.signal  # the counters report other processes; this callback, our own
        with watch_writes(db.write_lock.path, written) as watching:
            self.signal("anything")  # notifications from before this listened
            while True:
                await (written.wait() if watching else real_sleep(FILE_POLL_SECONDS))
                if stopwatch() - notified_at < 2 * BURST_SECONDS:
                    await real_sleep(BURST_SECONDS)
                written.clear()
                counts = counters.of_others()
                topics = [
                    topic for topic, now, before in zip(COUNTED_TOPICS, counts, known, strict=True) if now != before
                ]
                for topic in topics:
                    self.signal(topic)
                known, notified_at = counts, stopwatch() if topics else notified_at
                if (latest := counters.mark()) != mark:
                    mark = latest
                    if looking is not None:
                        looking.cancel()
                    looking = asyncio.create_task(self._look_for_commit())

    async def _look_for_commit(self) -> None:
        """Wake the loops in growing intervals: a program enqueued in its own transaction, whose commit is not
        announced. After PENDING_COMMIT_SECONDS the polls of the loops find its job."""
        delay, until = PENDING_COMMIT_SECONDS[0], stopwatch() + PENDING_COMMIT_SECONDS[1]
        while stopwatch() < until:
            await real_sleep(delay)
            self.signal("ready")
            self.signal("later")
            delay *= 1.5

    async def _listen_channel(self, url: str) -> None:
        delay = 0.1
        while True:
            lost = asyncio.Event()
            try:
                connection = await asyncpg.connect(url, timeout=5, server_settings={"application_name": "rota-wake"})
                try:
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, lambda *notification: self.signal(notification[3]))
                    self.signal("anything")  # notifications from before this listened
                    delay = 0.1
                    await lost.wait()
                finally:
                    with contextlib.suppress(Exception):
                        await connection.close(timeout=1)
            except (OSError, *DRIVER_ERRORS, TimeoutError) as error:
                log.debug("LISTEN connection lost; polling until it is back", error=str(error))
            await real_sleep(delay * random.uniform(0.5, 1))
            delay = min(delay * 2, 5)
