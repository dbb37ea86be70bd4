"""Webhooks that send signals: each has a topic, and a secret that its requests are signed with."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.core.webhooks import new_secret
from rota.db.dialect import Tx
from rota.db.paging import Page, page_by
from rota.db.statement import insert_new
from rota.db.tables import signal_hooks

PREVIOUS_SECRET_VALID = timedelta(days=1)  # after a rotation, so that senders can change theirs

c = signal_hooks.c


@dataclass(frozen=True, slots=True)
class SignalHook:
    """A row of `signal_hooks`."""

    id: str
    org_id: str
    name: str
    topic: str
    key_field: str | None  # where the payload has the key of the signal, such as `data.invoice`
    secret: str
    previous_secret: str | None
    previous_until: datetime | None
    created_at: datetime

    def valid_secrets(self, now: datetime) -> list[str]:
        """Return the secrets that requests may be signed with."""
        rotated = self.previous_secret is not None and self.previous_until is not None and now < self.previous_until
        return [self.secret, self.previous_secret] if rotated and self.previous_secret else [self.secret]

    def key_of(self, payload: object) -> str | None:
        """Return the key of the signal of a payload. Raises Invalid if the payload has none where it should be."""
        if self.key_field is None:
            return None
        value = payload
        for part in self.key_field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise Invalid(self.key_field, value, f"is not a text or number; hook {self.name!r} takes the key from it")
        return str(value)


def create(tx: Tx, org_id: str, name: str, topic: str, key_field: str | None, now: datetime) -> SignalHook:
    """Insert a hook with a new secret. Raises Conflict if another has this name."""
    hook = SignalHook(new_id(), org_id, name, topic, key_field, new_secret(), None, None, now)
    row = {field: getattr(hook, field) for field in SignalHook.__slots__}
    if not insert_new(tx, signal_hooks, [row], ["id"]):
        raise Conflict(f"hook {name!r} already exists")
    return hook


def get(tx: Tx, org_id: str, key: str) -> SignalHook:
    """Return a hook of an org by its id or name. Raises NotFound."""
    stmt = select(signal_hooks).where(c.org_id == org_id, or_(c.id == key, c.name == key)).order_by(c.id != key)
    row = tx.execute(stmt).first()
    if row is None:
        raise NotFound(f"hook {key!r} not found")
    return SignalHook(**row._asdict())


def find(tx: Tx, hook_id: str) -> SignalHook | None:
    """Return a hook of any org by its id: the request has no other credentials than its signature."""
    row = tx.execute(select(signal_hooks).where(c.id == hook_id)).one_or_none()
    return None if row is None else SignalHook(**row._asdict())


def list_hooks(tx: Tx, org_id: str, *, limit: int, cursor: str | None) -> Page:
    """Return the hooks of an org, without their secrets."""
    columns = (c.id, c.name, c.topic, c.key_field, c.previous_until, c.created_at)
    return page_by(tx, select(*columns).where(c.org_id == org_id), c.id, limit, cursor)


def rotate(tx: Tx, org_id: str, key: str, now: datetime) -> SignalHook:
    """Give a hook a new secret; the previous one is valid for another day. Raises NotFound."""
    hook = get(tx, org_id, key)
    values = {
        "secret": new_secret(), "previous_secret": hook.secret, "previous_until": now + PREVIOUS_SECRET_VALID
    }  # fmt: skip
    tx.execute(update(signal_hooks).where(c.id == hook.id).values(values))
    return get(tx, org_id, hook.id)


def remove(tx: Tx, org_id: str, key: str) -> None:
    """Delete a hook: its address is not found any more. Raises NotFound."""
    tx.execute(delete(signal_hooks).where(c.id == get(tx, org_id, key).id))
