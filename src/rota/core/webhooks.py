"""Signatures of webhooks, sent by alarms and received by signal hooks, in the format of Standard Webhooks: HMAC-SHA256
over id, timestamp and body.

Pure: the caller passes the time. The library of Standard Webhooks reads the clock of the process and knows one secret;
the tests verify with it what is sent, and sign with it what is received. https://www.standardwebhooks.com
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from rota.core.errors import Invalid

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
REPLAY_WINDOW = timedelta(minutes=5)  # a signed request is accepted so long before and after its timestamp
ID_CHARACTERS = 150
SIGNATURES_MAX = 10  # of one request; a sender that rotates its secret sends two


def new_secret() -> str:
    """Return a random secret as text."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(value: object, field: str = "secret") -> str:
    """Return a secret: SECRET_PREFIX and 24 to 64 bytes in Base64. Raises Invalid, without the value."""
    try:
        size = len(base64.b64decode(str(value).removeprefix(SECRET_PREFIX), validate=True))
    except ValueError:
        size = 0
    if not isinstance(value, str) or not value.startswith(SECRET_PREFIX) or not 24 <= size <= 64:
        raise Invalid(field, "…", f"is not {SECRET_PREFIX} and 24 to 64 bytes in Base64; leave it out to get one")
    return value


def sign(secret: str, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def refusal_of(headers: Mapping[str, str], body: bytes, valid_secrets: Sequence[str], now: datetime) -> str | None:
    """Return why a request is not accepted; None if it is signed with one of these secrets, within the replay window.
    Signatures are compared in constant time."""
    webhook_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not webhook_id or len(webhook_id) > ID_CHARACTERS or not webhook_id.isprintable() or not webhook_id.isascii():
        return f"the header webhook-id is missing, longer than {ID_CHARACTERS} characters or not printable"
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
        return "the header webhook-timestamp is missing or not a number of seconds"
    sent_at = int(timestamp)
    window = REPLAY_WINDOW.total_seconds()
    if abs(now.timestamp() - sent_at) > window:
        return f"the timestamp is more than {window:.0f} s from now: the request is old, or a clock is wrong"
    candidates = headers.get("webhook-signature", "").split(" ", SIGNATURES_MAX)[:SIGNATURES_MAX]
    expected = [sign(secret, webhook_id, sent_at, body) for secret in valid_secrets]
    matches = [hmac.compare_digest(ours.encode(), theirs.encode()) for ours in expected for theirs in candidates]
    return None if any(matches) else "no signature of the header webhook-signature matches the secret of this hook"
