"""Whether what is sent to a server can be read on the way. Rota ends no TLS itself: a proxy in front of it does."""

from rota.app.settings import Settings
from rota.core.addresses import is_loopback

TLS_REMEDY = "put a proxy with TLS before it, and set ROTA_PUBLIC_URL=https://… and ROTA_TRUSTED_PROXIES"


def without_tls(settings: Settings) -> bool:
    """Whether other machines reach the server, and no proxy with TLS is known."""
    return not is_loopback(settings.host) and not settings.public_url.startswith("https://")
