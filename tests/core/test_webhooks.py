"""Signatures of webhooks: as the library of Standard Webhooks makes them, and what is refused."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook

from rota.core.webhooks import new_secret, refusal_of, sign

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
SENT_AT = datetime.fromtimestamp(1614265330, UTC)
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_signatures_of_the_standards_library_are_accepted() -> None:
    assert Webhook(SECRET).sign(HEADERS["webhook-id"], SENT_AT, BODY.decode()) == HEADERS["webhook-signature"]
    assert sign(SECRET, HEADERS["webhook-id"], 1614265330, BODY) == HEADERS["webhook-signature"]
    assert Webhook(new_secret()).sign("1", SENT_AT, "")
    assert refusal_of(HEADERS, BODY, [SECRET], SENT_AT) is None
    assert refusal_of(HEADERS, BODY, [new_secret(), SECRET], SENT_AT) is None  # the secret before a rotation
    several = {**HEADERS, "webhook-signature": f"v1a,unknown v1,wrong {HEADERS['webhook-signature']}"}
    assert refusal_of(several, BODY, [SECRET], SENT_AT + timedelta(minutes=4)) is None


@pytest.mark.parametrize(
    ("changes", "body", "minutes", "reason"),
    [
        ({}, BODY + b" ", 0, "matches"),
        ({"webhook-signature": "v1,"}, BODY, 0, "matches"),
        ({"webhook-signature": ""}, BODY, 0, "matches"),
        ({"webhook-signature": "v1,\xe9"}, BODY, 0, "matches"),
        ({"webhook-signature": "x " * 11 + HEADERS["webhook-signature"]}, BODY, 0, "matches"),
        ({"webhook-id": "another"}, BODY, 0, "matches"),
        ({"webhook-id": ""}, BODY, 0, "webhook-id"),
        ({"webhook-id": "x" * 151}, BODY, 0, "webhook-id"),
        ({"webhook-timestamp": "1614265331"}, BODY, 0, "matches"),
        ({"webhook-timestamp": "-1"}, BODY, 0, "not a number"),
        ({"webhook-timestamp": "9" * 13}, BODY, 0, "not a number"),
        ({}, BODY, 6, "more than 300 s"),
        ({}, BODY, -6, "more than 300 s"),
    ],
)
def test_other_requests_are_refused(changes: dict[str, str], body: bytes, minutes: int, reason: str) -> None:
    refusal = refusal_of({**HEADERS, **changes}, body, [SECRET], SENT_AT + timedelta(minutes=minutes))
    assert reason in (refusal or "accepted")
