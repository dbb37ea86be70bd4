"""Settings of the OpenID Connect provider, and which role its groups give."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rota.core.addresses import is_loopback

ANYONE = "*"  # stands for every account of the provider
ROLES = ("viewer", "operator", "admin")  # in ascending order
MAX_GROUPS = 10_000  # of a person; further ones are ignored
ISSUERS_OPEN_TO_ALL = ("https://accounts.google.com",)  # where anybody can create an account


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The provider and the client that Rota is registered as. `roles` maps groups to roles."""

    issuer: str
    client_id: str
    roles: Mapping[str, str]
    client_secret: str = field(default="", repr=False)
    groups_claim: str = "groups"
    scopes: str = "openid profile email"
    org: str = "default"
    name: str = ""

    @property
    def title(self) -> str:
        """The provider's name on the login page: ROTA_OIDC_NAME, else its host."""
        return self.name or urlsplit(self.issuer).hostname or self.issuer


def parse_roles(text: str) -> dict[str, str]:
    """Parse `group=role,group=role`, or a JSON object for names with commas. Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            pairs = list(json.loads(text).items())
        except (ValueError, RecursionError) as error:
            raise ValueError("is not a JSON object of groups and roles") from error
    else:
        parts = [part.rpartition("=") for part in text.split(",") if part.strip()]
        pairs = [(group.strip(), role.strip()) for group, _, role in parts]
    for group, role in pairs:
        if not group or role not in ROLES:
            raise ValueError(
                f"has {group or role!r} without a role; write group=role,… with the roles viewer, operator and admin"
            )
    if len({group for group, _ in pairs}) < len(pairs):
        raise ValueError("names a group twice")
    return dict(pairs)


def check_issuer(issuer: str) -> str:
    """Return an issuer. Raises ValueError unless it is a URL by https, or on loopback."""
    parts = urlsplit(issuer)
    if parts.query or parts.fragment or parts.username or not parts.hostname:
        raise ValueError("is not the URL of an issuer, such as https://login.example.com/realms/acme")
    check_endpoint(issuer)
    if re.search(r"[\x00-\x20\x7f]", issuer) or len(issuer) > 500:
        raise ValueError("has spaces or control characters, or is longer than 500 characters")
    return issuer


def check_endpoint(url: str) -> str:
    """Return a URL of the provider. Raises ValueError unless it is https, or http on loopback."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ValueError("does not begin with https://; only a provider on this machine may be reached by http")
    return url


def check_open(issuer: str, roles: Mapping[str, str]) -> None:
    """Raises ValueError if `*` would give a role to everybody with an account of a public provider."""
    if ANYONE in roles and issuer.rstrip("/") in ISSUERS_OPEN_TO_ALL:
        raise ValueError(
            "gives a role to everybody with a Google account; name your domain instead: "
            "ROTA_OIDC_GROUPS_CLAIM=hd ROTA_OIDC_ROLES=example.com=viewer"
        )


def role_of(groups: Collection[str], roles: Mapping[str, str]) -> str | None:
    """Return the highest role that one of the groups gives, None if none does."""
    given = [roles[group] for group in (*groups, ANYONE) if group in roles]
    return max(given, key=ROLES.index, default=None)


def groups_of(claims: Mapping[str, object], claim: str) -> list[str] | None:
    """Return the groups in a claim, None if the claims do not have it. A text is a single group. `a.b` names the claim
    `a.b` or, if it is missing, field `b` of claim `a`. A literal `*` is not a group."""
    value = claims.get(claim)
    if value is None and "." in claim:
        value = claims
        for part in claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    return [group for group in value[:MAX_GROUPS] if isinstance(group, str) and group != ANYONE]
