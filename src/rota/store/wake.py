"""Wake-ups: hints that something became ready, that a due moment moved, or that somebody wants a run stopped.

NOTIFY_IS_A_HINT: every loop also looks by itself once in a while, so a lost hint costs latency, never work.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator

import asyncpg
import structlog

from rota.core.clock import pause
from rota.store.database import Database, FileWatch, SqliteDatabase
from rota.store.dialect import CHANNEL

FILE_LOOK = 0.02  # seconds between looks at a SQLite file's version
TOPICS = {"ready": "work", "later": "clock", "clocks": "clock", "cancel": "cancel"}

log = structlog.get_logger("rota.wake")


class Wake:
    """The events that the loops of one process wait for. Belongs to one event loop."""

    def __init__(self, forward: Callable[[str], None] | None = None) -> None:
        self._forward = forward  # to the loops of another thread of this process
        self.work = asyncio.Event()
        self.clock = asyncio.Event()
        self.cancel = asyncio.Event()

    def signal(self, what: str) -> None:
        """Something happened in this process, or another one said so."""
        for event in self._events(what):
            event.set()
        if self._forward is not None:
            self._forward(what)

    async def listen(self, db: Database) -> None:
        """Hear other processes, for ever."""
        if isinstance(db, SqliteDatabase):
            await self._watch_file(db)
        else:
            await self._listen_channel(db.url)

    def _events(self, what: str) -> Iterator[asyncio.Event]:
        topic = TOPICS.get(what)
        yield from [getattr(self, topic)] if topic else [self.work, self.clock, self.cancel]

    async def _watch_file(self, db: SqliteDatabase) -> None:
        watch = FileWatch(db.path)
        try:
            while True:
                await pause(FILE_LOOK)
                if watch.changed():
                    self.signal("anything")
        finally:
            watch.close()

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
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
                log.warning("listening for wake-ups failed; looking by myself meanwhile", error=str(error))
            await pause(delay * random.uniform(0.5, 1))
            delay = min(delay * 2, 5)
