"""Outgoing HTTP requests to URLs that users choose: only to public addresses, unless the operator allows others.

The request goes to the address that was checked, so that a second answer of DNS cannot lead it elsewhere.
"""

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from rota.core.addresses import is_public
from rota.core.errors import PermissionDenied


@dataclass(frozen=True, slots=True)
class PinnedUrl:
    """A URL whose host is the address that was checked, and what a request to it needs."""

    url: str
    headers: dict[str, str]
    extensions: dict[str, str]


async def pin(url: str, *, private: bool) -> PinnedUrl:
    """Resolve the host of a URL. Raises PermissionDenied for an address that is not public, unless `private`; OSError
    if the host is unknown."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(addresses[0][4][0])
    if not private and not is_public(address):
        raise PermissionDenied(f"{host} is {address}, which is not a public address")
    shown = f"[{address}]" if ":" in address else address
    target = parts._replace(netloc=shown + (f":{parts.port}" if parts.port else "")).geturl()
    return PinnedUrl(target, {"Host": parts.netloc.rpartition("@")[2]}, {"sni_hostname": host})
