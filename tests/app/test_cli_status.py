"""The screen of `rota status`: 24 lines of 80 characters, however much there is to show."""

from typing import Any

from rota.app.cli.status import fitted, screen

LONG = "a name that goes on and on " * 7
AT = "2026-05-04T09:00:00+00:00"
FREEZE = {"frozen": False, "frozen_at": None, "until": None, "reason": None}


def worker(number: int) -> dict[str, Any]:
    kinds = ["graph", "host_job", "pipeline", "repair", "task", "workflow"]
    queues = [f"{LONG}{number}"]
    return {
        "id": f"01M7Q{number:021}",
        "running": 5,
        "concurrency": 50,
        "renewed_at": AT,
        "queues": queues,
        "kinds": kinds,
    }


def answer(count: int, **changes: Any) -> dict[str, Any]:
    """An answer of the API with `count` entries in each list."""
    numbers = range(count)
    depth = {"ready": 3, "running": 1}
    error = {"type": "ValueError", "message": LONG}
    queue = {"depth": depth, "oldest_ready_at": AT, "max_running": 5, "paused": True}
    failed = {"times": 3, "finished_at": AT, "error": error, "acknowledged": None, "target_name": LONG}
    return {
        "ok": False,
        "version": "0.1.0",
        "database": "postgresql",
        "database_version": "17.2 (Debian 17.2-1.pgdg120+1)",
        "schema_revision": "0009",
        "workers": [worker(number) for number in numbers],
        "running": count,
        "lateness_seconds": 0.0042,
        "queues": [{"name": f"{LONG}{number}", **queue} for number in numbers],
        "schedules": {"enabled": 10**6, "disabled": 3, "paused": 10**6, "broken": 10**6, "late": 10},
        "attention": [{"what": "parked", "name": LONG, "detail": LONG, "since": AT} for _ in numbers],
        "failing": [{"schedule": f"{LONG}{number}", **failed} for number in numbers],
        "due": [{"schedule": LONG, "target": "t", "due_at": AT} for _ in numbers],
        "freeze": FREEZE,
        "reports_replica": None,
        **changes,
    }


def test_much_to_show_fits_one_screen() -> None:
    frozen = {"frozen": True, "frozen_at": AT, "until": None, "reason": LONG}
    away = {"problem": LONG, "lag_seconds": None, "fallbacks": 3}
    many = (answer(100), answer(100, freeze=frozen), answer(100, freeze=frozen, reports_replica=away))
    for shown in (*many, answer(3), answer(4)):
        lines = [fitted(line) for line in screen(shown)]
        assert len(lines) <= 24, "\n".join(lines)
        assert max(map(len, lines)) <= 80


def test_what_is_left_out_is_counted() -> None:
    lines = list(screen(answer(100)))
    assert "workers   100 alive, running 100 of 5000, slots start within 4 ms" in lines
    assert lines.count("  and 98 more") == 3  # workers, queues, failures
    assert lines.count("  and 97 more") == 1  # attention


def test_a_fresh_installation_has_a_short_status() -> None:
    lines = list(screen(answer(0, ok=True, lateness_seconds=None)))
    assert lines == [
        "Rota 0.1.0 on postgresql 17.2, schema 0009: ok",
        "workers   0 alive, running 0 of 0",
        "queues    0 jobs ready",
        "schedules 1000000 enabled, 1000000 paused, 1000000 broken, 10 late",
        "attention nothing",
        "failing   nothing",
        "due next  nothing",
    ]


def test_the_lag_of_the_replica_is_shown() -> None:
    lines = list(screen(answer(1, reports_replica={"problem": None, "lag_seconds": 0.25, "fallbacks": 0})))
    assert "replica   reports are 250 ms behind" in lines
    away = {"problem": "connection refused", "lag_seconds": 1.0, "fallbacks": 7}
    lines = list(screen(answer(1, reports_replica=away)))
    assert "replica   not used, reports are read from the primary: connection refused" in lines
