"""Proxy between a worker and PostgreSQL that drops the answer to a commit on demand.

It reads the frontend protocol: a transaction is known by the statements in it. Their texts come once, in Parse
messages; later only their names do, in Bind messages.
"""

import asyncio
import struct
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103
KINDS = {
    "claim": "fences",  # only a claim draws from the sequence
    "finish": "INSERT INTO runs",
    "fire": "INSERT INTO slots",
}


class Proxy:
    def __init__(self, database_url: str) -> None:
        self._target = urlsplit(database_url)
        self._server: asyncio.Server | None = None
        self._kind = ""
        self._left = 0
        self.cuts = 0
        self._lines: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    @property
    def url(self) -> str:
        """The database through this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._target.username}@" if self._target.username else ""
        return urlunsplit(self._target._replace(netloc=f"{user}127.0.0.1:{port}"))

    def arm(self, kind: str, times: int) -> None:
        """Drop the answers to the next commits of transactions of this kind."""
        self._kind, self._left = KINDS[kind], times

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        deaf = asyncio.Event()  # answers are dropped from now on

        async def answers() -> None:
            while chunk := await server.read(65_536):
                if deaf.is_set():  # the server has answered, so the commit has happened
                    return
                to_client.write(chunk)
                await to_client.drain()

        try:
            first = await start_up(client, to_client)
            to_server.write(first)
            ways = [
                asyncio.ensure_future(answers()),
                asyncio.ensure_future(self._forward(client, to_server, deaf)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if deaf.is_set():
                await asyncio.wait(ways[:1], timeout=10)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            to_client.close()
            to_server.close()
            self._lines.discard(line)

    def _drop_answer(self, transaction: list[str], deaf: asyncio.Event) -> None:
        """Drop the answer to a commit of the armed kind."""
        if self._left and any(self._kind in text for text in transaction):
            self._left -= 1
            deaf.set()

    async def _forward(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, deaf: asyncio.Event
    ) -> None:
        texts: dict[bytes, str] = {}
        transaction: list[str] = []
        within = False  # a BEGIN and its COMMIT; else each statement commits with its Sync
        while True:
            head = await client.readexactly(5)
            body = await client.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            match head[:1]:
                case b"P":
                    name, text, _ = body.split(b"\0", 2)
                    texts[name] = text.decode()
                case b"B":
                    _, name, _ = body.split(b"\0", 2)
                    transaction.append(texts.get(name, ""))
                case b"Q":
                    word = body.rstrip(b"\0; ").upper()
                    if word.startswith(b"BEGIN"):
                        transaction, within = [], True
                    elif word == b"COMMIT":
                        self._drop_answer(transaction, deaf)
                    if word.startswith((b"COMMIT", b"ROLLBACK")):
                        transaction, within = [], False
                case b"S" if not within:
                    self._drop_answer(transaction, deaf)
                    transaction = []
                case _:
                    pass
            to_server.write(head + body)
            await to_server.drain()
            if deaf.is_set():
                self.cuts += 1
                return


async def start_up(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bytes:
    """The start-up message, after a request for encryption has been declined."""
    while True:
        size = await client.readexactly(4)
        body = await client.readexactly(struct.unpack("!I", size)[0] - 4)
        if struct.unpack("!I", body[:4])[0] != SSL_REQUEST:
            return size + body
        to_client.write(b"N")
        await to_client.drain()
