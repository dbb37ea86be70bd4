"""TCP proxy between a client and a server that cuts connections on demand."""

import contextlib
import socket
import threading
from typing import Any, Self
from urllib.parse import urlsplit


class TcpProxy:
    """`with TcpProxy(url) as proxy`: the same server at `proxy.url`. It runs in threads: its clients block."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.target = (address.hostname or "", address.port or 80)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: set[socket.socket] = set()
        self.drop = 0  # responses still to be dropped
        self.cuts = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.listener.close()
        self.close_all()

    def cut(self) -> None:
        """Close all open connections."""
        self.cuts += 1
        self.close_all()

    def lose_answers(self, count: int) -> None:
        """Drop the responses to the next requests; the server receives the requests."""
        self.drop = count

    def close_all(self) -> None:
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
            except OSError:  # closed
                return
            self.open |= {client, server}
            threading.Thread(target=self.carry, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.carry, args=(server, client, True), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65_536):
                if answers and self.drop:
                    self.drop -= 1
                    self.cuts += 1
                    break
                sink.sendall(part)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self.open.discard(connection)
