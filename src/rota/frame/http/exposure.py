"""Public URL of the server, and whether a request comes from the server's own machine."""

from dataclasses import dataclass

from fastapi import Request

from rota.core.addresses import is_loopback

FORWARDING_HEADERS = frozenset(
    {
        "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-client-ip",
        "true-client-ip", "cf-connecting-ip",
    }
)  # fmt: skip


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
        return str(request.base_url).rstrip("/")
    host, port = request.scope["server"]
    host = f"[{host}]" if ":" in host else host
    return f"{request.url.scheme}://{host}{'' if port is None else f':{port}'}"


def is_local(request: Request) -> bool:
    """Return whether the request comes from a loopback address and was not forwarded by a proxy."""
    exposure: Exposure = request.app.state.exposure
    if exposure.public_url or exposure.behind_proxy or FORWARDING_HEADERS & set(request.headers):
        return False
    return request.client is not None and is_loopback(request.client.host)
