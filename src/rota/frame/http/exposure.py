"""Public URL of the server, and whether a request comes from the server's own machine."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request

from rota.core.addresses import is_loopback

FORWARDING_HEADERS = frozenset(
    {
        "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-client-ip",
        "true-client-ip", "cf-connecting-ip",
    }
)  # fmt: skip

MOUNT_KEY = "rota.mount"  # key of the ASGI scope: the path prefix below which the site is mounted


@dataclass(frozen=True, slots=True)
class Exposure:
    """`public_url` is ROTA_PUBLIC_URL, if set; `behind_proxy`: requests come through a trusted proxy."""

    public_url: str = ""
    behind_proxy: bool = False


def base_url_of(request: Request) -> str:
    """Return the base URL for links and commands. The Host header, which clients can forge, is used only if it is a
    loopback address."""
    exposure: Exposure = request.app.state.exposure
    if exposure.public_url:
        return exposure.public_url
    if is_loopback(request.url.hostname or ""):
        return str(request.base_url).rstrip("/") + mount_of(request)
    host, port = request.scope["server"]
    host = f"[{host}]" if ":" in host else host
    return f"{request.url.scheme}://{host}{'' if port is None else f':{port}'}{mount_of(request)}"


def mount_of(request: Request) -> str:
    """Return the path prefix below which the site is mounted; empty at the root of its server."""
    return str(request.scope.get(MOUNT_KEY, ""))


def is_https(request: Request) -> bool:
    """Return whether the browser uses https: the request's scheme, or that of ROTA_PUBLIC_URL if it was used, for a
    proxy that ends TLS and is not named in ROTA_TRUSTED_PROXIES."""
    exposure: Exposure = request.app.state.exposure
    public = urlsplit(exposure.public_url)
    return request.url.scheme == "https" or (public.scheme == "https" and request.url.hostname == public.hostname)


def is_local(request: Request) -> bool:
    """Return whether the request comes from a loopback address and was not forwarded by a proxy."""
    exposure: Exposure = request.app.state.exposure
    if exposure.public_url or exposure.behind_proxy or FORWARDING_HEADERS & set(request.headers):
        return False
    return request.client is not None and is_loopback(request.client.host)
