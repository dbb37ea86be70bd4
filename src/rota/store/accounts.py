"""Orgs and their API keys. A key is 32 random bytes; only its beginning and its hash are stored.

A plain SHA-256 is enough: nobody can guess a key that random, so slowing a guesser down gains nothing.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from rota.core.model import new_id
from rota.store.dialect import Tx, insert_new, insert_rows
from rota.store.tables import api_keys, orgs

PREFIX = 12  # characters of a key that are stored as they are: enough to find its row and to name it to people


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key: for whom it speaks, and what it may do."""

    id: str
    org_id: str
    role: str


def ensure_default_org(tx: Tx, now: datetime) -> tuple[str, str | None]:
    """The default org's id; and, when the database had no org yet, the text of its first admin key, told only here."""
    found = org_by_slug(tx, "default") or tx.execute(select(orgs.c.id).order_by(orgs.c.id).limit(1)).scalar()
    if found is not None:
        return found, None
    org = {"id": new_id(), "slug": "default", "name": "Default", "created_at": now}
    if not insert_new(tx, orgs, [org], ("id",)):  # another process was quicker, and holds the key
        return org_by_slug(tx, "default") or "", None
    return str(org["id"]), create_key(tx, str(org["id"]), "first admin key", "admin", now)


def create_key(tx: Tx, org_id: str, name: str, role: str, now: datetime) -> str:
    """A new key of an org. Returns its text, which nobody can read again."""
    text = f"rota_{secrets.token_urlsafe(32)}"
    key = {
        "id": new_id(), "org_id": org_id, "name": name, "role": role, "prefix": text[:PREFIX], "hash": hash_of(text),
        "created_at": now,
    }  # fmt: skip
    insert_rows(tx, api_keys, [key])
    return text


def find_key(tx: Tx, text: str) -> Key | None:
    """The stored key behind a text, compared in constant time."""
    wanted = hash_of(text)
    columns = (api_keys.c.id, api_keys.c.org_id, api_keys.c.role, api_keys.c.hash)
    found = None
    for row in tx.execute(select(*columns).where(api_keys.c.prefix == text[:PREFIX])):
        if hmac.compare_digest(row.hash, wanted):
            found = Key(row.id, row.org_id, row.role)
    return found


def org_by_slug(tx: Tx, slug: str) -> str | None:
    """The id of an org."""
    return tx.execute(select(orgs.c.id).where(orgs.c.slug == slug)).scalar_one_or_none()


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
