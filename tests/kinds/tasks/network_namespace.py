"""Holds a network namespace, and forwards connections into it from a socket that listens outside. Ends with its stdin,
and ends all processes of the namespace then. Run by `unshare -rn`."""

import fcntl
import os
import shutil
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def open_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def forward(listener: socket.socket, port: int) -> None:
    while True:
        outer, _ = listener.accept()
        try:
            inner = socket.create_connection(("127.0.0.1", port))
        except OSError:
            outer.close()
            continue
        for source, target in ((outer, inner), (inner, outer)):
            threading.Thread(target=copy, args=(source, target), daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        shutil.copyfileobj(source.makefile("rb", 0), target.makefile("wb", 0))
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def end_all() -> None:
    own = os.readlink("/proc/self/ns/net")
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            if pid != os.getpid() and os.readlink(f"/proc/{pid}/ns/net") == own:
                os.kill(pid, signal.SIGKILL)


def main(descriptor: int, port: int) -> None:
    open_loopback()
    threading.Thread(target=forward, args=(socket.socket(fileno=descriptor), port), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    end_all()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
