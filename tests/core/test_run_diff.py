from rota.core.run_diff import compare, log_diff

RUN = {
    "status": "success",
    "queued_at": "2026-05-04T09:00:00+00:00",
    "started_at": "2026-05-04T09:00:01+00:00",
    "finished_at": "2026-05-04T09:00:03+00:00",
    "input": {"day": "today", "shops": [{"id": 1}, {"id": 2}]},
    "outcome": 5,
    "error": None,
}


def test_only_what_differs_is_marked() -> None:
    other = RUN | {
        "finished_at": "2026-05-04T09:00:07+00:00",
        "input": {"day": "today", "shops": [{"id": 1}, {"id": 3}], "limit": 7},
        "error": {"type": "ValueError", "message": "no"},
    }
    differences = {(item.section, item.name): item for item in compare(RUN, other) if item.differs}
    assert differences.keys() == {
        ("durations", "took"),
        ("input", "shops[1].id"),
        ("input", "limit"),
        ("error", "type"),
        ("error", "message"),
    }
    assert (differences["durations", "took"].a, differences["durations", "took"].change) == (2.0, "3 times")
    assert (differences["input", "limit"].a, differences["input", "limit"].b) == (None, 7)
    assert differences["input", "shops[1].id"].change == "+50 %"
    assert not [item for item in compare(RUN, RUN) if item.differs]


def test_timestamps_of_logs_do_not_count() -> None:
    first = [f"2026-05-04 09:00:{n:02d},5 line {n}" for n in range(20)]
    second = [f"2026-05-05T10:11:{n:02d}Z line {n}" for n in range(20)]
    assert log_diff(first, second) == []
    assert ("+", "· line x") in log_diff(first, [*second, "10:00:00 line x"])
