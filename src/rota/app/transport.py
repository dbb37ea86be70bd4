"""Whether traffic to a server is unencrypted. Rota does not terminate TLS itself: a proxy before it does."""

from rota.app.settings import Settings
from rota.core.addresses import is_loopback

TLS_REMEDY = "put a proxy with TLS before it, and set ROTA_PUBLIC_URL=https://… and ROTA_TRUSTED_PROXIES"


def without_tls(settings: Settings) -> bool:
    """Return whether other machines can reach the server, and no proxy with TLS is configured."""
    return not is_loopback(settings.host) and not settings.public_url.startswith("https://")
