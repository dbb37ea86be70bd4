"""Which database the reports of a request are read from: the replica, if there is one, or the primary.

Lists, pages and reports use `reports_of`; whatever must be current (a single resource, authentication, every write)
reads from the engine's database.
"""

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.db.connection import Reads
from rota.db.replica import Replica, ReplicaState
from rota.frame.http.auth import WRITERS_SCOPE_KEY, Caller
from rota.frame.http.contract import engine_of


def reports_of(request: Request, caller: Caller) -> Reads:
    """Return the database for lists, pages and reports. A caller sees what it has written through this server."""
    replica: Replica | None = request.app.state.replica
    return engine_of(request).db if replica is None else replica.of_reader(caller.user_id)


def replica_state(request: Request) -> ReplicaState | None:
    """Return how this server sees its replica, None without one."""
    replica: Replica | None = request.app.state.replica
    return None if replica is None else replica.state


class RecordedWrites:
    """Middleware that remembers who has written, before the answer is sent: the caller's next reports have the write.
    Outside of what commits the transaction of a request."""

    def __init__(self, app: ASGIApp, replica: Replica) -> None:
        self.app, self.replica = app, replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        writers: list[str] = []

        async def send_after_recording(message: Message) -> None:
            if message["type"] == "http.response.start":
                for writer in writers:
                    self.replica.record_write(writer)
            await send(message)

        await self.app({**scope, WRITERS_SCOPE_KEY: writers}, receive, send_after_recording)
