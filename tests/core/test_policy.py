"""What follows a failure, and when a job may start."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.errors import AuthError, GiveUp, Invalid, LogicError, PermissionDenied, RetryAfter, TransientError
from rota.core.policy import (
    TRANSIENT_RETRY,
    Backoff,
    Fail,
    Failure,
    FailureClass,
    Overlap,
    Park,
    Retry,
    RetryLater,
    Terms,
    after_failure,
    classify,
    parse_overlap,
    parse_retry,
)
from rota.core.timing.windows import Window

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (TransientError("net"), FailureClass.TRANSIENT),
        (ConnectionResetError("gone"), FailureClass.TRANSIENT),
        (TimeoutError(), FailureClass.TRANSIENT),
        (AuthError("key"), FailureClass.AUTH),
        (PermissionDenied("no"), FailureClass.PERMISSION),
        (LogicError("wrong"), FailureClass.LOGIC),
        (GiveUp("not ours"), FailureClass.LOGIC),
        (RetryAfter(30), FailureClass.TRANSIENT),
        (ValueError("timeout transient auth"), FailureClass.LOGIC),  # never by matching text
        (SystemExit(3), FailureClass.LOGIC),
    ],
)
def test_a_failure_is_classified_by_its_type(error: BaseException, failure_class: FailureClass) -> None:
    failure = classify(raised(error))
    assert failure.failure_class is failure_class
    assert failure.type == type(error).__name__
    assert failure.message


def test_a_failure_can_always_be_stored() -> None:
    assert Failure(FailureClass.LOGIC, "E", "half \ud800").dump()["message"] == "half \\ud800"


FAILURES = {failure_class: Failure(failure_class, "E", "x") for failure_class in FailureClass}


@pytest.mark.parametrize(
    ("failure_class", "retry", "tries", "expected"),
    [
        (FailureClass.LOGIC, None, 1, Fail()),
        (FailureClass.LOGIC, Retry(2, 1000), 1, RetryLater(timedelta(seconds=1))),
        (FailureClass.LOGIC, Retry(2, 1000), 2, RetryLater(timedelta(seconds=1))),
        (FailureClass.LOGIC, Retry(2, 1000), 3, Fail()),
        (FailureClass.INTERNAL, Retry(1), 1, RetryLater(timedelta(seconds=2))),
        (FailureClass.TIMEOUT, Retry(1), 1, RetryLater(timedelta(seconds=2))),
        (FailureClass.TRANSIENT, None, 1, RetryLater(timedelta(seconds=10))),
        (FailureClass.TRANSIENT, None, 5, RetryLater(timedelta(seconds=160))),
        (FailureClass.TRANSIENT, None, 6, Fail()),
        (FailureClass.TRANSIENT, Retry(0), 1, Fail()),
        (FailureClass.AUTH, Retry(9), 1, Park("approval")),
        (FailureClass.PERMISSION, None, 1, Park("approval")),
        (FailureClass.INDETERMINATE, Retry(9), 1, Park("reconciliation")),
        (FailureClass.BUDGET, Retry(9), 1, Fail()),
    ],
)
def test_what_follows_a_failure(failure_class: FailureClass, retry: Retry | None, tries: int, expected: Any) -> None:
    assert after_failure(FAILURES[failure_class], retry, tries) == expected


def test_a_logic_error_is_final_whatever_the_retry_policy() -> None:
    assert after_failure(classify(LogicError("wrong")), Retry(9), 1) == Fail()
    assert after_failure(classify(ValueError("wrong")), Retry(9), 1) == RetryLater(timedelta(seconds=2))


def test_giving_up_is_final_and_has_its_own_error_code() -> None:
    failure = classify(GiveUp("customer 7 was deleted"))
    assert failure.dump()["code"] == "gave_up"
    assert failure.message == "customer 7 was deleted"
    assert after_failure(failure, Retry(9), 1) == Fail()


def test_retry_after_sets_the_delay_but_not_the_number_of_retries() -> None:
    failure = classify(RetryAfter(90))
    assert failure.message == "asked for another attempt after 90 s"
    assert after_failure(failure, Retry(2, 1000), 2) == RetryLater(timedelta(seconds=90))
    assert after_failure(failure, Retry(2, 1000), 3) == Fail()
    assert after_failure(failure, None, 5) == RetryLater(timedelta(seconds=90))
    assert after_failure(failure, None, 6) == Fail()
    assert after_failure(classify(RetryAfter(0)), Retry(1), 1) == RetryLater(timedelta(0))


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 366 * 86_400 + 1, "30", None, True])
def test_a_wrong_delay_is_refused_where_it_is_raised(seconds: Any) -> None:
    with pytest.raises(Invalid, match="seconds"):
        RetryAfter(seconds)


def test_jitter_spreads_the_backoff_of_jobs_and_is_the_same_for_one_job() -> None:
    retry = Retry(3, 10_000, jitter=0.5)
    delays = [retry.delay(1, f"job{number}").total_seconds() for number in range(200)]
    assert delays == [retry.delay(1, f"job{number}").total_seconds() for number in range(200)]
    assert all(5 <= delay <= 10 for delay in delays)
    assert min(delays) < 5.5
    assert max(delays) > 9.5
    assert retry.delay(1, "job1") != retry.delay(2, "job1")
    assert Retry(3, 10_000).delay(1, "job1") == timedelta(seconds=10)
    assert "jitter" not in Retry(3, 10_000).dump()  # workers of the version before it do not know the field


def test_delays_grow_to_their_cap_and_never_overflow() -> None:
    assert [TRANSIENT_RETRY.delay(tries).total_seconds() for tries in (1, 2, 3, 7, 1000)] == [10, 20, 40, 600, 600]
    assert Retry(9, 500).delay(9) == timedelta(milliseconds=500)


@given(
    st.builds(
        Terms,
        timeout=st.none() | st.just(timedelta(seconds=5)),
        retry=st.none()
        | st.builds(Retry, st.integers(0, 9), st.integers(0, 9000), st.sampled_from(Backoff), jitter=st.floats(0, 1)),
        deadline_at=st.none() | st.just(NINE),
        window=st.none() | st.just(Window(time(9), time(10))),
    )
)
def test_terms_survive_being_stored(terms: Terms) -> None:
    assert Terms.load(terms.dump()) == terms


def test_when_it_is_too_late_to_start() -> None:
    terms = Terms(deadline_at=NINE, window=Window(time(8), time(10)), window_until=NINE + timedelta(hours=1))
    assert terms.too_late(NINE) is None
    assert terms.too_late(NINE + timedelta(seconds=1)) == "deadline"
    later = Terms(window=Window(time(8), time(9)), window_until=NINE)
    assert later.too_late(NINE - timedelta(seconds=1)) is None
    assert later.too_late(NINE) == "window"  # half-open
    assert later.not_before(NINE) == NINE + timedelta(hours=23)
    assert Terms().not_before(NINE) == NINE


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("often", "retry"),
        ({"max_retries": -1}, "retry.max_retries"),
        ({"max_retries": True}, "retry.max_retries"),
        ({"backoff_ms": 1.5}, "retry.backoff_ms"),
        ({"backoff_type": "linear"}, "retry.backoff_type"),
        ({"jitter": 1.5}, "retry.jitter"),
        ({"jitter": float("nan")}, "retry.jitter"),
        ({"jitter": True}, "retry.jitter"),
        ({"times": 3}, "retry.times"),
    ],
)
def test_an_invalid_retry_policy_is_reported_by_its_field(value: Any, field: str) -> None:
    with pytest.raises(Invalid) as raised_error:
        parse_retry(value)
    assert raised_error.value.field == field


def test_names_of_kubernetes_are_understood() -> None:
    assert [parse_overlap(name) for name in ("Allow", "Forbid", "Replace", "queue_one")] == [
        Overlap.ALLOW,
        Overlap.SKIP,
        Overlap.REPLACE,
        Overlap.QUEUE_ONE,
    ]
    with pytest.raises(Invalid):
        parse_overlap("sometimes")


def test_a_transient_failure_without_a_policy_backs_off_as_the_operator_has_set_it() -> None:
    transient_retry = Retry(1, 3000, Backoff.EXPONENTIAL, 60_000)
    failure = Failure(FailureClass.TRANSIENT, "Lost", "connection lost")
    assert after_failure(failure, None, 1, transient_retry) == RetryLater(timedelta(seconds=3))
    assert after_failure(failure, None, 2, transient_retry) == Fail()
    assert after_failure(failure, Retry(2, 1000), 2, transient_retry) == RetryLater(timedelta(seconds=1))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("messages"), "KeyError: 'messages'"),
        (ValueError("too short"), "too short"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_message_of_a_failure_is_never_only_a_key(error: Exception, message: str) -> None:
    assert classify(error).message == message
