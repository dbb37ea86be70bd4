"""HTTP connections: uvicorn's protocol with limits on duration and size of the request head (slowloris)."""

import asyncio

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HEAD_SECONDS = 20.0  # from the connection, or the first byte of a further request, to the end of the head
HEAD_BYTES = 64 * 1024  # of request line and headers
LINGER_SECONDS = 2.0  # between refusal and close: a reset would discard the response before the client reads it


class Connection(H11Protocol):
    """Closes a connection whose request head takes too long (408), and refuses one that is too large (431)."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.head_timer: asyncio.TimerHandle | None = None
        self.refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self.stop_head_timer()
        elif self.conn.trailing_data[0]:
            self.start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_head_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if len(self.conn.trailing_data[0]) > HEAD_BYTES:
            self.refuse("431 Request Header Fields Too Large", f"the head of a request has at most {HEAD_BYTES} bytes")
        else:
            self.refuse("400 Bad Request", msg)

    def refuse(self, status: str, message: str) -> None:
        """Send an error response and close the connection after LINGER_SECONDS."""
        self.refused = True
        self.stop_head_timer()
        head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(message)}\r\n\r\n{message}".encode("ascii"))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def start_head_timer(self) -> None:
        if self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self.on_slow_head)

    def stop_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def on_slow_head(self) -> None:
        self.head_timer = None
        if not self.conn.trailing_data[0]:
            self.transport.close()  # idle: no byte of a request arrived
        elif not self.transport.is_closing():
            self.refuse("408 Request Timeout", f"the head of a request must arrive within {HEAD_SECONDS:g} s")
