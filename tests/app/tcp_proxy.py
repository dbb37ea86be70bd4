"""Stands between a client and a server, and cuts what runs through it when it is told to."""

import contextlib
import socket
import threading
from typing import Any, Self
from urllib.parse import urlsplit


class TcpProxy:
    """`with TcpProxy(url) as proxy`: the same server at `proxy.url`. Threads, because whoever waits here blocks."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self.target = (place.hostname or "", place.port or 80)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: set[socket.socket] = set()
        self.deaf = 0  # answers that are still to be lost
        self.cuts = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.listener.close()
        self.close_all()

    def cut(self) -> None:
        """End every connection that is there now."""
        self.cuts += 1
        self.close_all()

    def lose_answers(self, count: int) -> None:
        """The server hears the next requests, and their answers come to nobody."""
        self.deaf = count

    def close_all(self) -> None:
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

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
                if answers and self.deaf:
                    self.deaf -= 1
                    self.cuts += 1
                    break
                sink.sendall(part)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self.open.discard(one)
