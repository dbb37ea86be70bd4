"""Fair shares of a claim among orgs and queues."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rota.core.fair_shares import Lane, divide_claims

lanes = st.lists(
    st.builds(Lane, st.sampled_from("abcde"), st.sampled_from("xyz"), st.none() | st.integers(0, 9)),
    unique_by=lambda lane: (lane.org_id, lane.queue),
)


@given(lanes, st.integers(0, 60), st.integers(0, 99))
def test_room_is_shared_within_all_limits(ready: list[Lane], room: int, turn: int) -> None:
    counts = divide_claims(ready, room, turn)
    assert sum(count for _, count in counts) <= room
    assert all(count > 0 and (lane.cap is None or count <= lane.cap) for lane, count in counts)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 99))
def test_orgs_without_limits_get_equal_shares(orgs: int, room: int, turn: int) -> None:
    ready = [Lane(f"org{n}", "q") for n in range(orgs)]
    counts = Counter({lane.org_id: count for lane, count in divide_claims(ready, room, turn)})
    assert sum(counts.values()) == room
    org_counts = [counts[f"org{n}"] for n in range(orgs)]
    assert max(org_counts) - min(org_counts) <= 1


def test_the_remainder_goes_to_another_org_each_turn() -> None:
    ready = [Lane(f"org{n}", "q") for n in range(3)]
    firsts = {divide_claims(ready, 1, turn)[0][0].org_id for turn in range(3)}
    assert firsts == {"org0", "org1", "org2"}
