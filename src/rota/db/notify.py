"""Wake-ups: hints that something became ready, that a due moment moved, or that somebody wants a run stopped.

NOTIFY_IS_A_HINT: every loop also looks by itself once in a while, so a lost hint costs latency, never work.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator

import asyncpg
import structlog

from rota.core.clock import pause, stopwatch
from rota.db.connection import FROM_THE_DRIVER, Database, SqliteDatabase
from rota.db.dialect import CHANNEL
from rota.db.file_watch import writes_to
from rota.db.sqlite_lock import WORDS

CROWD = 0.005  # seconds between looks while others keep saying something
FILE_POLL = 0.02  # seconds between looks at a file where the system does not tell of writes
TOPICS = {"ready": "work", "later": "clock", "clocks": "clock", "cancel": "cancel", "taken": "changed"}

log = structlog.get_logger("rota.wake")


class Wake:
    """The events that the loops of one process wait for. Belongs to one event loop."""

    def __init__(self, forward: Callable[[str], None] | None = None) -> None:
        self._forward = forward  # to the loops of another thread of this process
        self.work = asyncio.Event()
        self.clock = asyncio.Event()
        self.cancel = asyncio.Event()
        self.tasks = 0  # rises whenever a task may have changed
        self.changed = asyncio.Event()  # a new one after each signal: any number may wait for the next

    def signal(self, what: str) -> None:
        """Something happened in this process, or another one said so."""
        for event in self._events(what):
            event.set()
        self.tasks += what not in TOPICS
        self.stir()
        if self._forward is not None:
            self._forward(what)

    def stir(self) -> None:
        """Let everybody look who follows what changes."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def listen(self, db: Database) -> None:
        """Hear other processes, for ever. Without it work is only found late, so it is not given up."""
        while True:
            try:
                await (self._watch_file(db) if isinstance(db, SqliteDatabase) else self._listen_channel(db.url))
            except Exception:
                log.exception("listening for wake-ups failed; trying again")
                await pause(1)

    def _events(self, what: str) -> Iterator[asyncio.Event]:
        topic = TOPICS.get(what)
        yield from [getattr(self, topic)] if topic else [self.work, self.clock, self.cancel]

    async def _watch_file(self, db: SqliteDatabase) -> None:
        known, heard_at = db.turn.heard(), 0.0
        touched = asyncio.Event()
        db.on_notify = self.signal  # the file has the notifications of other processes, this those of our own
        with writes_to(db.turn.path, touched) as told:
            self.signal("anything")  # whatever was said while nobody listened
            while True:
                await (touched.wait() if told else pause(FILE_POLL))
                if stopwatch() - heard_at < 2 * CROWD:
                    await pause(CROWD)
                touched.clear()
                heard = db.turn.heard()
                news = [word for word, now, before in zip(WORDS, heard, known, strict=True) if now != before]
                for word in news:
                    self.signal(word)
                known, heard_at = heard, stopwatch() if news else heard_at

    async def _listen_channel(self, url: str) -> None:
        delay = 0.1
        while True:
            lost = asyncio.Event()
            try:
                connection = await asyncpg.connect(url, timeout=5, server_settings={"application_name": "rota-wake"})
                try:
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, lambda *heard: self.signal(heard[3]))
                    self.signal("anything")  # whatever was said while nobody listened
                    delay = 0.1
                    await lost.wait()
                finally:
                    with contextlib.suppress(Exception):
                        await connection.close(timeout=1)
            except (OSError, *FROM_THE_DRIVER, TimeoutError) as error:
                log.debug("LISTEN connection lost; polling until it is back", error=str(error))
            await pause(delay * random.uniform(0.5, 1))
            delay = min(delay * 2, 5)
