"""The tables of states and moves: complete, without dead ends, and in agreement with each other."""

from rota.core.states import (
    HEADS,
    MOVES,
    PHASE_MOVES,
    STATUSES_THAT_RAN,
    Move,
    Phase,
    State,
    Status,
    Verdict,
    state_after,
    states_before,
    verdict_of,
)


def test_each_move_leads_to_one_state() -> None:
    for move in Move:
        assert {after for (_, how), after in MOVES.items() if how is move} == {state_after(move)}
        assert states_before(move) or (None, move) in MOVES


def test_no_state_is_a_dead_end_and_each_can_be_reached() -> None:
    assert {before for before, _ in MOVES} == {None, *State}
    assert set(MOVES.values()) == set(State)


def test_only_a_lease_leads_to_running() -> None:
    leases = [move for (_, move), after in MOVES.items() if after is State.RUNNING]
    assert leases == [Move.LEASE, Move.CLAIM, Move.ADOPT]


def test_a_head_stays_a_head_until_it_leaves_the_queue_or_lets_another_go_first() -> None:
    for (before, move), after in MOVES.items():
        if before in HEADS:
            assert after in HEADS or move is Move.YIELD


def test_every_status_of_a_run_that_is_over_has_a_verdict() -> None:
    for status in set(Status) - {Status.PENDING, Status.RUNNING}:
        assert verdict_of(status) in Verdict
    assert {verdict_of(status) for status in STATUSES_THAT_RAN} == {Verdict.RAN}


def test_phases_only_move_forward() -> None:
    order = list(Phase)
    for before, after in PHASE_MOVES:
        assert order.index(before) < order.index(after)
