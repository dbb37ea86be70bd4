"""A sign-in by a provider, as far as it needs neither network nor database.

The state, nonce and PKCE verifier of an attempt are derived from a random secret in a cookie of the browser that began
it, as CSRF tokens of forms are: nothing is stored until a sign-in has succeeded, and no other browser can complete it.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

from rota.access.api.models import read_email
from rota.access.oidc.settings import OidcSettings, groups_of, role_of
from rota.access.store.sign_ins import Identity
from rota.core.errors import Invalid, Refused, Unavailable

SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
MAX_NAME_CHARACTERS = 200


class ProviderUnavailable(Unavailable):
    """The provider cannot be reached, or does not answer as one: 503."""


class SignInRefused(Refused):
    """The provider's answer is not a valid proof of identity: 403."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in that one browser has begun: what goes to the provider and must come back."""

    secret: str = field(repr=False)

    @classmethod
    def begin(cls) -> "Attempt":
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        return self.derived(b"state")

    @property
    def nonce(self) -> str:
        return self.derived(b"nonce")

    @property
    def code_verifier(self) -> str:
        return self.derived(b"code verifier")

    def derived(self, purpose: bytes) -> str:
        digest = hmac.digest(self.secret.encode(), b"oidc " + purpose, "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()

    def has_state(self, state: str) -> bool:
        """Return whether a state is that of this attempt. Compares in constant time."""
        return hmac.compare_digest(self.state.encode(), state.encode())


def identity_of(claims: Mapping[str, object], settings: OidcSettings, attempt: Attempt) -> Identity:
    """Return the identity that verified claims describe, with the role of its groups."""
    subject = str(claims["sub"])
    email = verified_email(claims)
    groups = groups_of(claims, settings.groups_claim) or []
    if settings.groups_claim == "email":
        groups = [email] if email is not None else []
    names = (claims.get(claim) for claim in ("name", "preferred_username"))
    name = next((text for value in names if (text := clean(value))), email or subject)
    return Identity(settings.issuer, subject, name, email, role_of(groups, settings.roles), attempt.nonce)


def verified_email(claims: Mapping[str, object]) -> str | None:
    """Return the e-mail address if the provider states that it verified it."""
    verified = claims.get("email_verified")
    if verified is not True and verified != "true":
        return None
    try:
        return read_email(claims.get("email"), "email")
    except Invalid:
        return None


def clean(value: object) -> str:
    """Return a name without control characters; empty if it is not a text."""
    text = value if isinstance(value, str) else ""
    return "".join(character for character in text if character.isprintable()).strip()[:MAX_NAME_CHARACTERS]
