"""Network namespaces: a process in one can be disconnected like a machine. Needs root."""

import os
import shutil
import subprocess
from ipaddress import ip_address
from types import TracebackType
from typing import Self


class Network:
    """A namespace with one cable to this one. `here` is the address of this end."""

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"rota-{os.getpid()}-{number}", f"ro{os.getpid()}n{number}"[:15]
        first = ip_address("198.18.0.0") + os.getpid() % 8192 * 8 + number * 4  # for tests of networks; four for each
        self.here, self.there = str(first + 1), str(first + 2)
        self.within = ["ip", "netns", "exec", self.name]

    def __enter__(self) -> Self:
        ip("netns", "add", self.name)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.here}/30", "dev", self.cable)
        ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        self.reconnect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ip("netns", "del", self.name)
        subprocess.run(
            ["ip", "link", "del", self.cable], check=False, capture_output=True
        )  # usually deleted with the namespace

    def cut(self) -> None:
        ip("link", "set", self.cable, "down")

    def reconnect(self) -> None:
        ip("link", "set", self.cable, "up")


def ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, timeout=20)


def possible() -> bool:
    """Return whether this process may create network namespaces: root may, but not in every container."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
