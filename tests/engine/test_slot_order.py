"""Schedules that run after other schedules' jobs of the same slot."""

from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import Invalid, LogicError
from rota.core.order import in_order
from rota.db.tables import jobs, runs, schedules
from rota.engine import slot_order
from rota.engine.declare import declare_schedules
from tests.engine.harness import Harness, at


def test_names_are_ordered_behind_those_before_them_and_cycles_come_last() -> None:
    assert in_order({"c": ["b"], "x": ["y"], "b": ["a", "elsewhere"], "y": ["x"], "a": []}) == ["a", "b", "c", "x", "y"]
    chain = {f"{number}": [f"{number + 1}"] for number in range(20_000)}
    assert in_order(chain)[0] == "19999"


async def started(harness: Harness) -> list[str]:
    """Return the targets of the runs that were executed, in their order."""
    return [job.target for job in harness.fake_runner.began]


async def test_jobs_of_a_slot_run_in_the_order_of_their_schedules(harness: Harness) -> None:
    await harness.schedule("load")
    await harness.schedule("check", after=["load"])
    await harness.schedule("report", after=["check", "load"])
    await harness.run_until(at("9:21"))
    assert await started(harness) == ["load", "check", "report"] * 2
    for name in ("load", "check", "report"):
        assert await harness.verdicts(name) == ["9:10 ran", "9:20 ran"]


async def test_a_job_waits_for_the_job_of_its_slot(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.target == "load"
    await harness.schedule("load", overlap="queue_all")
    await harness.schedule("report", after=["load"], overlap="queue_all")
    await harness.run_until(at("9:12"))
    assert await started(harness) == ["load"]
    assert await harness.verdicts("report") == ["9:10 (later)"]
    await harness.release()
    await harness.run_until(at("9:13"))
    assert await started(harness) == ["load", "report"]


async def test_a_job_behind_one_that_is_skipped_is_skipped_too(harness: Harness) -> None:
    await harness.schedule("load")
    await harness.schedule("check", after=["load"])
    await harness.schedule("report", after=["check"])
    await harness.schedule("mail", after=["report"])
    await harness.engine.pause_schedule(harness.org_id, "load")
    await harness.run_until(at("9:11"))
    for name in ("check", "report", "mail"):
        assert await harness.verdicts(name) == ["9:10 skipped: dependency"]
    assert await started(harness) == []


@pytest.mark.parametrize(
    ("when", "error", "expected"),
    [
        (None, LogicError("wrong"), "skipped: dependency"),
        ("failure", LogicError("wrong"), "ran"),
        ("failure", None, "skipped: dependency"),
        ("any", LogicError("wrong"), "ran"),
    ],
)
async def test_how_the_job_before_ended_decides(
    harness: Harness, when: str | None, error: Exception | None, expected: str
) -> None:
    harness.fake_runner.errors = [error]
    await harness.schedule("load", overlap="queue_all")
    await harness.schedule("report", after=["load"], when=when)
    await harness.run_until(at("9:11"))
    assert await harness.verdicts("report") == [f"9:10 {expected}"]
    assert (await harness.stats("report")).skipped_count == (expected != "ran")
    assert await harness.queue() == []


async def test_a_slot_that_the_other_schedule_does_not_have_is_not_waited_for(harness: Harness) -> None:
    await harness.schedule("hourly", "0 * * * *")
    await harness.schedule("disabled", enabled=False)
    await harness.schedule("report", "*/30 * * * *", after=["hourly", "disabled"])
    await harness.run_until(at("10:01"))
    assert await started(harness) == ["report", "hourly", "report"]


async def test_a_slot_that_passed_without_a_job_has_not_succeeded(harness: Harness) -> None:
    await harness.schedule("load")
    await harness.schedule("report", after=["load"])
    await harness.schedule("always", after=["load"], when="any")
    await harness.engine.pause_schedule(harness.org_id, "load")
    await harness.run_until(at("9:11"))
    assert await harness.verdicts("report") == ["9:10 skipped: dependency"]
    await harness.engine.resume_schedule(harness.org_id, "load")
    await harness.run_until(at("9:21"))
    await harness.engine.delete_schedule(harness.org_id, "load")
    await harness.run_until(at("9:31"))
    assert (await harness.verdicts("report"))[1:] == ["9:20 ran", "9:30 skipped: dependency"]
    assert await harness.verdicts("always") == ["9:10 ran", "9:20 ran", "9:30 ran"]


async def test_a_pause_whose_end_is_known_is_not_waited_for(harness: Harness) -> None:
    await harness.schedule("load")
    await harness.schedule("always", after=["load"], when="any")
    await harness.engine.pause_schedule(harness.org_id, "load", until=at("9:45"))
    await harness.run_until(at("9:31"))
    assert await harness.verdicts("always") == ["9:10 ran", "9:20 ran", "9:30 ran"]


async def test_a_chain_of_schedules_has_at_most_as_many_levels_as_one_check_reads(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_order, "AFTER_LEVELS_MAX", 3)
    await harness.schedule("a")
    await harness.schedule("b", after=["a"])
    await harness.schedule("c", after=["b"])
    await harness.schedule("d", after=["c"])
    with pytest.raises(Invalid, match="more than 3 levels"):
        await harness.schedule("e", after=["d"])
    assert len(await harness.rows(select(schedules))) == 4


async def test_a_schedule_is_held_until_the_one_before_has_fired(harness: Harness) -> None:
    await harness.schedule("load", jitter_seconds=300)
    await harness.schedule("report", after=["load"])
    await harness.run_until(at("9:16"))
    assert await started(harness) == ["load", "report"]
    assert await harness.verdicts("report") == ["9:10 ran"]


async def test_a_slot_that_was_held_is_not_late(harness: Harness) -> None:
    await harness.schedule("load", jitter_seconds=300)
    await harness.schedule("report", after=["load"], misfire="skip")
    await harness.run_until(at("9:16"))
    assert await harness.verdicts("report") == ["9:10 ran"]


async def test_wrong_names_and_cycles_are_refused_and_nothing_is_stored(harness: Harness) -> None:
    await harness.schedule("a")
    await harness.schedule("b", after=["a"])
    for fields, field, message in (
        ({"after": ["nosuch"]}, "after[0]", "is not a schedule; see `rota schedule list`"),
        ({"after": ["c"]}, "after", "is the schedule itself"),
        ({"when": "any"}, "when", "needs `after`"),
        ({"after": "a"}, "after", ""),
        ({"after": ["a"], "when": "soon"}, "when", ""),
    ):
        with pytest.raises(Invalid) as refused:
            await harness.schedule("c", **fields)
        assert refused.value.field == field, refused.value
        assert message in str(refused.value)
    with pytest.raises(Invalid, match="closes a cycle"):
        await harness.edit("a", after=["b"])
    await harness.schedule("c", after=["b"])
    with pytest.raises(Invalid, match="closes a cycle"):
        await harness.edit("a", after=["c"])
    assert len(await harness.rows(select(schedules))) == 3
    assert "after" not in (await harness.record("a")).timing
    await harness.edit("c", when="any")
    await harness.edit("c", cron_expression="*/20 * * * *")
    assert (await harness.record("c")).timing["after"] == ["b"]
    await harness.edit("c", after=[])
    assert "after" not in (await harness.record("c")).timing


async def test_a_program_may_declare_them_in_any_order(harness: Harness) -> None:
    wanted: list[dict[str, object]] = [
        {"name": "report", "target": "report", "cron_expression": "*/10 * * * *", "after": ["load"]},
        {"name": "load", "target": "load", "cron_expression": "*/10 * * * *"},
    ]
    await declare_schedules(harness.engine, harness.org_id, "shop.py", wanted, "system")
    await harness.run_until(at("9:11"))
    assert await started(harness) == ["load", "report"]


async def test_many_schedules_of_one_request_may_follow_each_other(harness: Harness) -> None:
    def body(name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "target": name, "cron_expression": "*/10 * * * *", **fields}

    with pytest.raises(Invalid, match="closes a cycle"):
        await harness.engine.create_schedules(harness.org_id, [body("x", after=["y"]), body("y", after=["x"])])
    await harness.engine.create_schedules(harness.org_id, [body("x", after=["y"]), body("y")])
    await harness.run_until(at("9:11"))
    assert await started(harness) == ["y", "x"]
    assert await harness.rows(select(jobs)) == []
    assert len(await harness.rows(select(runs))) == 2
