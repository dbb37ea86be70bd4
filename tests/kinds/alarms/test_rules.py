"""Every rule fires and resolves, on both databases, on a clock that the test moves."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from rota.core.clock import ClockSample, SystemClock, stopwatch
from rota.core.errors import LogicError
from rota.core.ids import new_id
from rota.db.statement import insert_rows
from rota.db.tables import grants, hosts, workers
from rota.engine import orgs
from rota.kinds.alarms.evaluation import Evaluation
from tests.engine.harness import DAY, HOUR, MINUTE, at
from tests.kinds.alarms.harness import Alarms

SECOND = timedelta(seconds=1)


async def test_a_slot_that_no_process_fires_is_late_and_missed_until_a_slot_runs(alarms: Alarms) -> None:
    harness = alarms.harness
    await harness.schedule("nightly", tags=["night"])
    await harness.schedule("other")
    await alarms.add("late > 5m", on="tag:night")
    await alarms.add("missed", on="schedule:nightly")
    await harness.run_until(at("9:10"))
    await alarms.evaluate()
    assert await alarms.open() == []
    await alarms.evaluate(at("9:22"))  # no scheduler lives; the slot of 9:20 is past its grace, but not 5 minutes late
    assert await alarms.open() == ["missed: nightly firing"]
    await alarms.evaluate(at("9:27"))
    assert await alarms.open() == ["late: nightly firing", "missed: nightly firing"]
    assert "7m ago" in " ".join(await alarms.texts())
    await harness.start_at(at("9:28"))
    assert await alarms.later(SECOND * 31) == ["late: nightly firing"]  # the slot ran, 8 minutes late
    await harness.run_until(at("9:30"))
    assert await alarms.later() == []


async def test_a_slot_that_was_recorded_as_missed_fires_although_a_later_slot_ran(alarms: Alarms) -> None:
    harness = alarms.harness
    await harness.schedule("nightly", misfire="skip")
    await alarms.add("missed")
    await harness.run_until(at("9:05"))
    await harness.start_at(at("9:35"))
    await harness.run_until(at("9:40"))
    assert await alarms.later() == ["missed: nightly firing"]
    assert (await alarms.texts())[0].startswith("missed ")
    await harness.run_until(at("9:50"))
    assert await alarms.later() == []
    assert await alarms.later() == []  # the same missed slots do not fire again


async def test_runs_that_take_too_long_or_end_too_soon(alarms: Alarms) -> None:
    harness = alarms.harness
    await harness.schedule("report", "0 * * * *", overlap="skip")
    await alarms.add("overran > 30m")
    await alarms.add("too_short < 50%")
    harness.fake_runner.long, harness.fake_runner.first = lambda job: True, True
    for hour in range(10, 16):  # ten minutes are usual
        await harness.run_until(at(f"{hour}:00"))
        harness.clock.set(at(f"{hour}:10"))
        await harness.release()
        assert await alarms.later() == []
    await harness.run_until(at("16:00"))
    await alarms.evaluate(at("16:31"))
    assert await alarms.open() == ["overran: report firing"]
    await harness.release()
    assert await alarms.later() == ["overran: report firing"]
    harness.fake_runner.long = lambda job: False
    await harness.run_until(at("17:00"))
    assert await alarms.later() == ["too_short: report firing"]
    assert "usual are 600.0 s" in (await alarms.texts())[-1]
    harness.fake_runner.long = lambda job: True
    await harness.run_until(at("18:00"))
    harness.clock.set(at("18:10"))
    await harness.release()
    assert await alarms.later() == []


async def test_failures_in_a_row_fire_and_pause_a_schedule_that_asks_for_it(alarms: Alarms) -> None:
    harness = alarms.harness
    await harness.schedule("flaky", pause_after_failures=3)
    await harness.schedule("steady")
    await alarms.add("failed_in_a_row >= 2")
    await alarms.add("paused")
    await alarms.add("not_succeeded_since > 1h")
    flaky = LogicError("disk full")
    harness.fake_runner.errors = [flaky, None, flaky, None]  # of `flaky` and `steady`, in turn
    await harness.run_until(at("9:10"))
    assert await alarms.later() == []
    await harness.run_until(at("9:20"))
    assert await alarms.later() == ["failed_in_a_row: flaky firing"]
    assert (await alarms.texts())[0] == "failed 2 times in a row: disk full"
    harness.fake_runner.errors = [flaky, None]
    await harness.run_until(at("9:30"))
    failing = ["failed_in_a_row: flaky firing", "paused: flaky firing"]
    assert await alarms.later() == failing
    assert (await harness.record("flaky")).pause_reason == "3 failures in a row"
    await alarms.evaluate(at("10:05"))
    assert await alarms.open() == failing
    await harness.engine.resume_schedule(harness.org_id, "flaky")
    await Evaluation(harness.engine, alarms.settings).step()  # a process that starts now
    assert (await harness.record("flaky")).paused_at is None
    await harness.run_until(at("10:10"))
    assert await alarms.later() == []
    harness.fake_runner.errors = [flaky] * 40
    await harness.edit("flaky", pause_after_failures=None)
    await harness.run_until(at("11:15"))
    assert "not_succeeded_since: flaky firing" in await alarms.later()
    harness.fake_runner.errors = []
    await harness.run_until(at("11:20"))
    assert await alarms.later() == []


async def test_a_skipped_slot_fires_with_its_reason(alarms: Alarms) -> None:
    harness = alarms.harness
    await harness.schedule("report", overlap="skip")
    await alarms.add("skipped = overlap", name="overlap")
    await alarms.add("skipped = budget", name="budget")
    await alarms.add("skipped", name="any")
    harness.fake_runner.long = lambda job: True
    await harness.run_until(at("9:20"))
    assert await alarms.later() == ["any: report firing", "overlap: report firing"]
    assert "(overlap)" in (await alarms.texts())[0]
    await harness.release()
    harness.fake_runner.long = lambda job: False
    await harness.run_until(at("9:30"))
    assert await alarms.later() == []


async def test_queues_workers_hosts_and_grants(alarms: Alarms) -> None:
    harness, org_id = alarms.harness, alarms.harness.org_id
    await alarms.add("queue_age > 10m", on="queue:default")
    await alarms.add("no_worker > 2m")
    await alarms.add("host_offline > 5m")
    await alarms.add("grant_expiring < 7d")
    await alarms.add("budget_low < 20%")
    now = harness.clock.now()
    host = {"id": new_id(), "org_id": org_id, "name": "web", "labels": {}, "key_hash": "x", "key_version": 1}
    await harness.db.tx(insert_rows, hosts, [{**host, "last_heartbeat_at": now, "created_at": now, "updated_at": now}])
    owner = await harness.db.tx(orgs.system_user, org_id, now)
    grant = await harness.engine.create_grant(
        org_id, owner, ["task:run:*"], expires_at=now + 7 * DAY + 5 * MINUTE, budget={"total": 100, "per_day": 50}
    )
    await harness.engine.enqueue(org_id, "task", "report", [None])
    await harness.write(update(workers).values(lease_until=now + 5 * MINUTE, renewed_at=now))
    assert await alarms.later() == []
    await harness.write(update(grants).values(spent_total=85))
    await alarms.evaluate(now + 11 * MINUTE)
    assert await alarms.open() == [
        f"budget_low: grant {grant} firing",
        f"grant_expiring: grant {grant} firing",
        "host_offline: host web firing",
        "no_worker: task (task) firing",
        "no_worker: the installation firing",
        "queue_age: queue default firing",
    ]
    now = harness.clock.now()
    await harness.write(update(workers).values(lease_until=now + HOUR, renewed_at=now))
    await harness.write(update(hosts).values(last_heartbeat_at=now))
    await harness.engine.revoke_grant(org_id, grant)
    await harness.work()
    assert await alarms.later() == []


async def test_disk_and_clock_are_measured_on_each_machine(alarms: Alarms) -> None:
    harness = alarms.harness
    await alarms.add("disk_low < 100%")
    alarm_id = await alarms.add("clock_skew > 2s")
    clock = SystemClock()
    clock.sync(ClockSample(datetime.now(UTC) - HOUR, stopwatch(), stopwatch()))
    for place in ("one", "two"):
        evaluation = Evaluation(harness.engine, alarms.settings)
        evaluation.place = place
        harness.engine.clock = harness.clock if place == "one" else clock
        harness.clock.set(clock.now())
        await evaluation.step()
    assert await alarms.open() == ["clock_skew: two firing", "disk_low: one firing", "disk_low: two firing"]
    await alarms.manager.edit(alarm_id, {"when": "clock_skew > 2h"})
    await alarms.manager.edit("disk_low", {"when": "disk_low < 0.1%"})
    assert await alarms.open() == []
