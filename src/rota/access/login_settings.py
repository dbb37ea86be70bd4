"""How people log in to the dashboard, and how long their sessions last."""

from dataclasses import dataclass

from rota.access.oidc.settings import OidcSettings
from rota.access.store.logins import DEFAULT_SESSION_LIMITS, SessionLimits

__all__ = ["LoginSettings", "SessionLimits"]


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """`oidc` is the provider, if there is one; `passwords` whether people may log in with a password."""

    oidc: OidcSettings | None = None
    passwords: bool = True
    session_limits: SessionLimits = DEFAULT_SESSION_LIMITS
