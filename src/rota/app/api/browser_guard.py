"""Protection against cross-site requests and DNS rebinding, for servers on this machine or network.

A page of another site has no key, but reaches a server that requires none; by DNS rebinding (its own name resolves to
an address here) the browser treats the server as the page's own origin.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from rota.frame.http.contract import problem

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")


class BrowserGuard:
    """Answers 403 to a Host that is not a name of this server, and to writes from a page of another origin.

    Accepted are `hosts`, addresses, `localhost` and names without a dot: none of these can be a public name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self.app, self.hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await problem(403, "refused", refusal)(scope, receive, send)

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused; None if it is accepted."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "").lower()
        if host and not self.is_known_host(host):
            return f"{host!r} is not a name of this server; its operator can add it to ROTA_ALLOWED_HOSTS"
        if scope["method"] not in WRITE_METHODS:
            return None
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if (
            origin == "null" and site == "same-origin"
        ):  # the dashboard's own form: its Referrer-Policy sends a null origin
            return None
        if site == "cross-site" or (origin is not None and not self.is_own(origin.lower(), host)):
            return f"a page of another site ({origin or 'cross-site'}) may not write here"
        return None

    def is_known_host(self, host: str) -> bool:
        name = host_name(f"//{host}")
        return name in self.hosts or "." not in name or name.endswith(".localhost") or is_address(name)

    def is_own(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host or host_name(origin) in self.hosts


def host_name(url: str) -> str:
    """Return the host in a URL; `.`, which matches no name, if it cannot be parsed."""
    try:
        return (urlsplit(url).hostname or ".").rstrip(".") or "."
    except ValueError:
        return "."


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
