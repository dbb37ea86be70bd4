"""The sentences of `rota why`, from rows."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rota.core.errors import Invalid
from rota.core.explain import attempt, origin

SLOT = datetime(2026, 5, 4, 9, tzinfo=UTC)
SCHEDULE = {"name": "hourly"}


def queued(late: float) -> str:
    row: dict[str, Any] = {"queued_at": SLOT + timedelta(seconds=late), "slot": SLOT, "trigger": "schedule:every 1h"}
    return origin(row, SCHEDULE, "system")


def ended(**fields: Any) -> str:
    row = {
        "attempt": 1,
        "started_at": SLOT,
        "finished_at": SLOT + timedelta(seconds=2),
        "worker": None,
        "reason": None,
        "error": None,
        **fields,
    }
    return attempt(row)


def test_a_job_queued_ahead_of_its_slot_is_queued_before_it() -> None:
    assert queued(-0.0495).endswith(", 0.0495 s before the slot.")
    assert queued(3).endswith(", 3 s after the slot.")


def test_an_attempt_that_another_follows_is_retried_not_paused() -> None:
    text = ended(status="paused", reason="transient", error={"type": "OSError", "message": "refused"})
    assert text.endswith("after 2 s: retried, because the cause is transient (transient). Its error: OSError: refused.")


def test_the_type_of_an_error_is_named_once() -> None:
    text = ended(status="failed", reason="logic", error={"type": "KeyError", "message": "KeyError: 'day'"})
    assert text.endswith("Its error: KeyError: 'day'.")


def test_a_missing_field_has_no_value() -> None:
    assert Invalid("input.day", None, "is missing").message == "input.day is missing"
