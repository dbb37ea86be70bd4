"""The rules of workflows, as tables and as properties."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.effects import EFFECT_MOVES, OPEN_EFFECTS, RECONCILE, EffectStatus
from rota.core.errors import Invalid
from rota.core.policy import WAKE_MAX, WAKE_MIN
from rota.core.states import PHASE_MOVES, Phase, Status
from rota.kinds.workflows.rules import (
    ALLOWED,
    CONTINUES,
    Candidate,
    HandlerKind,
    Op,
    Outcome,
    check_prepared,
    clamp_wake,
    first_of,
    legal,
    may_move,
    start_of,
)

NOW = datetime(2026, 5, 4, 9, tzinfo=UTC)
ORDER = list(Phase)
CONSUMER_PHASES = [phase for phase in Phase if phase not in (Phase.PENDING, Phase.EXECUTING, Phase.COMMITTED)]


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)))
def test_phases_only_move_forward(before: Phase, after: Phase) -> None:
    """PHASE_MOVES_FORWARD."""
    if may_move(before, after):
        assert ORDER.index(after) > ORDER.index(before)
    assert may_move(before, after) or (before, after) not in PHASE_MOVES


@pytest.mark.parametrize(
    ("phase", "outcome", "effect", "begins", "keeps"),
    [
        (Phase.PREPARING, None, None, Phase.PREPARING, False),
        (Phase.PREPARED, None, None, Phase.PREPARING, False),
        (Phase.MUTATING, None, None, Phase.PREPARING, False),
        (Phase.MUTATING, None, EffectStatus.IN_FLIGHT, Phase.MUTATING, True),
        (Phase.MUTATING, None, EffectStatus.NEEDS_RECONCILE, Phase.MUTATING, True),
        (Phase.MUTATING, None, EffectStatus.INDETERMINATE, Phase.MUTATING, True),
        (Phase.MUTATED, Outcome.APPLIED, None, Phase.EMITTING, True),
        (Phase.MUTATED, Outcome.SKIPPED, None, Phase.EMITTING, True),
        (Phase.MUTATED, Outcome.FAILED, None, Phase.PREPARING, False),
        (Phase.EMITTING, Outcome.APPLIED, None, Phase.EMITTING, True),
    ],
)
def test_where_an_attempt_begins(
    phase: Phase, outcome: Outcome | None, effect: EffectStatus | None, begins: Phase, keeps: bool
) -> None:
    start = start_of(HandlerKind.CONSUMER, phase, outcome, effect)
    assert (start.phase, start.keeps) == (begins, keeps)


@given(st.sampled_from(CONSUMER_PHASES), st.sampled_from([None, *Outcome]), st.sampled_from([None, *OPEN_EFFECTS]))
def test_an_attempt_never_mutates_what_may_have_happened(
    phase: Phase, outcome: Outcome | None, effect: EffectStatus | None
) -> None:
    start = start_of(HandlerKind.CONSUMER, phase, outcome, effect)
    if outcome in CONTINUES or (effect is not None and outcome is not Outcome.FAILED):
        assert start.keeps
        assert start.phase is not Phase.PREPARING
    else:
        assert not start.keeps


def test_a_producer_always_starts_fresh() -> None:
    for phase in (None, Phase.EXECUTING):
        start = start_of(HandlerKind.PRODUCER, phase)
        assert (start.phase, start.keeps) == (Phase.EXECUTING, False)


def test_each_phase_allows_what_the_source_says() -> None:
    table = {
        Phase.EXECUTING: {Op.READ, Op.PUBLISH},
        Phase.PREPARING: {Op.READ, Op.PEEK},
        Phase.MUTATING: {Op.MUTATE},
        Phase.EMITTING: {Op.PUBLISH},
    }
    assert table == ALLOWED


def test_effects_that_are_known_stay_known() -> None:
    for before, _ in EFFECT_MOVES:
        assert before in OPEN_EFFECTS


def test_only_a_committed_run_is_a_success_and_the_other_way_round() -> None:
    for phase, status in product(Phase, (Status.SUCCESS, Status.FAILED, Status.CRASHED, Status.PAUSED)):
        assert legal(phase, status, None) is ((phase is Phase.COMMITTED) == (status is Status.SUCCESS))
    assert not legal(Phase.PREPARING, Status.PAUSED, "reconciliation")
    assert legal(Phase.MUTATING, Status.PAUSED, "reconciliation")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None),
        (NOW, NOW + WAKE_MIN),
        (NOW - timedelta(days=9), NOW + WAKE_MIN),
        (NOW + timedelta(hours=1), NOW + timedelta(hours=1)),
        ("2026-05-04T10:00:00Z", NOW + timedelta(hours=1)),
        (NOW + timedelta(days=2), NOW + WAKE_MAX),
        ("tomorrow", NOW + WAKE_MIN),
        ("2026-05-04T10:00:00", NOW + WAKE_MIN),
        (17, NOW + WAKE_MIN),
    ],
)
def test_wake_times_are_clamped(asked: object, expected: datetime | None) -> None:
    wake_at, wrong = clamp_wake(asked, NOW)
    assert wake_at == expected
    assert (wrong is not None) == (asked in ("tomorrow", "2026-05-04T10:00:00", 17))


@given(st.one_of(st.none(), st.text(), st.integers(), st.datetimes(timezones=st.just(UTC))))
def test_no_wake_time_makes_a_busy_loop_or_an_endless_sleep(asked: object) -> None:
    wake_at, _ = clamp_wake(asked, NOW)
    assert wake_at is None or NOW + WAKE_MIN <= wake_at <= NOW + WAKE_MAX


@given(st.lists(st.builds(Candidate, st.text(min_size=1), st.none(), st.one_of(st.none(), st.text(min_size=1)))))
def test_the_oldest_event_goes_first(candidates: list[Candidate]) -> None:
    first = first_of(candidates)
    waiting = [candidate for candidate in candidates if candidate.oldest is not None]
    if waiting:
        assert any(
            candidate.name == first and candidate.oldest == min(w.oldest or "" for w in waiting)
            for candidate in waiting
        )
    else:
        assert (first is None) == (not candidates)


def test_services_are_asked_at_growing_distances() -> None:
    spans = [RECONCILE.delay(n).total_seconds() for n in range(1, 10)]
    assert spans == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_reservations_name_each_event_once() -> None:
    assert check_prepared({"reservations": {"a": ["1", "2", "1"], "b": []}}, ["a", "b"]) == {"a": ["1", "2"]}
    reservations: list[object] = [None, [], {"c": ["1"]}, {"a": "1"}, {"a": [1]}]
    for wrong in reservations:
        with pytest.raises(Invalid, match="reservations"):
            check_prepared({"reservations": wrong}, ["a", "b"])


def test_a_wake_time_is_moved_into_the_limits_of_the_operator() -> None:
    limits = (timedelta(seconds=1), timedelta(hours=1))
    assert clamp_wake(NOW, NOW, *limits)[0] == NOW + timedelta(seconds=1)
    assert clamp_wake(NOW + timedelta(days=1), NOW, *limits)[0] == NOW + timedelta(hours=1)
