"""Metrics of a process, their snapshots, and the totals of workers that ended."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.tables import metric_totals
from rota.db.tables import runs as run_rows
from rota.db.tables import slots as slot_rows
from rota.db.tables import workers as worker_rows
from rota.engine import worker_metrics, workers
from rota.engine.instruments import DURATION, FIRES, INSTRUMENTS, LATENESS, RUNS, SLOTS
from rota.engine.metrics import ENDED, SERVERS, Metrics, Values, add_to, count_on_commit, dump, load
from tests.engine.harness import NINE, Harness, at

LEASE = timedelta(seconds=30)
FIRES_SERIES = (FIRES.name,)


async def register(db: Database, worker: str) -> None:
    await db.tx(
        lambda tx: workers.register(
            tx,
            worker=worker,
            pid=1,
            version="1",
            concurrency=1,
            kinds=[],
            routes=[],
            queues=None,
            lease=LEASE,
            now=NINE,
        )
    )


def fires(number: int) -> list[list[object]]:
    metrics = Metrics()
    metrics.add(FIRES, amount=number)
    return metrics.snapshot()


async def total(db: Database) -> float:
    return sum(values.get(FIRES_SERIES, [0.0])[0] for values in (await db.read(worker_metrics.by_source)).values())


def test_a_snapshot_restores_every_series() -> None:
    metrics = Metrics()
    metrics.add(RUNS, "task", "success", amount=3)
    for late in (0.001, 0.2, 99_999.0):
        metrics.observe(LATENESS, [late])
    assert load(dump(metrics.values)) == metrics.values
    assert metrics.total(LATENESS) == 3
    assert metrics.values[LATENESS.name,][-2] == 1  # above the last bucket


def test_a_snapshot_of_another_version_is_read_as_far_as_it_is_known() -> None:
    unknown = [[["rota_future"], [1]], [["rota_fires", "label"], [1]], [["rota_fires"], [1, 2]], "x", [[], []]]
    assert load([*unknown, *fires(2)]) == {FIRES_SERIES: [2.0]}
    assert load(None) == load("damaged") == {}


def test_a_snapshot_has_a_bounded_number_of_series() -> None:
    metrics = Metrics()
    for number in range(2000):
        metrics.add(RUNS, f"kind{number}", "success")
    assert len(metrics.snapshot()) == 1000


def test_instruments_have_distinct_names_and_ordered_buckets() -> None:
    assert all(name.startswith("rota_") for name in INSTRUMENTS)
    assert all(list(each.buckets) == sorted(set(each.buckets)) for each in INSTRUMENTS.values())


def test_a_process_that_registers_again_counts_for_its_new_registration() -> None:
    metrics = Metrics()
    metrics.begin_registration("first", None)
    metrics.add(FIRES, amount=5)
    stored = metrics.snapshot()
    metrics.add(FIRES)  # after the last heartbeat of the first registration
    metrics.begin_registration("second", stored)
    metrics.add(FIRES)
    assert metrics.source == "second"
    assert metrics.current() == {FIRES_SERIES: [2.0]}
    assert metrics.total(FIRES) == 7


async def test_only_what_was_committed_is_counted(db: Database) -> None:
    db.observer = metrics = Metrics()

    def step(tx: Tx, fails: bool) -> None:
        count_on_commit(tx, lambda metrics: metrics.add(FIRES))
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await db.tx(step, True)
    await db.tx(lambda tx: None)  # on the same connection
    assert metrics.total(FIRES) == 0
    await db.tx(step, False)
    assert metrics.total(FIRES) == 1
    transaction = await db.begin()
    await transaction.run(step, False)
    assert metrics.total(FIRES) == 1
    await transaction.commit()
    assert metrics.total(FIRES) == 2
    transaction = await db.begin()
    await transaction.run(step, False)
    await transaction.rollback()
    await db.tx(lambda tx: None)
    assert metrics.total(FIRES) == 2


async def test_heartbeats_store_the_snapshot_and_a_dead_worker_cannot(db: Database) -> None:
    await register(db, "w1")
    await db.tx(workers.beat, "w1", LEASE, fires(3))
    await db.tx(workers.beat, "w1", LEASE, None)  # unchanged
    assert await total(db) == 3
    await db.tx(workers.declare_dead, "w1", NINE + timedelta(days=1000))
    await db.tx(workers.beat, "w1", LEASE, fires(9))
    assert await total(db) == 3


async def test_the_total_keeps_what_ended_workers_counted(db: Database) -> None:
    for worker, number in (("w1", 3), ("w2", 4)):
        await register(db, worker)
        await db.tx(workers.stop, worker, NINE, fires(number))
    assert await db.tx(worker_metrics.merge_ended, NINE + timedelta(minutes=4)) == 0
    assert set(await db.read(worker_metrics.by_source)) == {"w1", "w2"}
    assert await db.tx(worker_metrics.merge_ended, NINE + timedelta(minutes=6)) == 2
    assert await db.tx(worker_metrics.merge_ended, NINE + timedelta(minutes=6)) == 0
    assert await db.read(worker_metrics.by_source) == {ENDED: {FIRES_SERIES: [7.0]}}
    await db.tx(workers.delete_stopped, NINE + timedelta(days=8))
    assert await total(db) == 7


async def test_a_worker_is_forgotten_only_after_its_metrics_are_merged(db: Database) -> None:
    await register(db, "w1")
    await db.tx(workers.stop, "w1", NINE, fires(3))
    assert await db.tx(workers.delete_stopped, NINE + timedelta(days=8)) == 0
    await db.tx(worker_metrics.merge_ended, NINE + timedelta(days=8))
    assert await db.tx(workers.delete_stopped, NINE + timedelta(days=8)) == 1
    assert list(await db.read(lambda tx: list(tx.execute(select(worker_rows.c.id))))) == []


async def test_servers_add_what_they_counted_once(db: Database) -> None:
    first, second = Metrics(), Metrics()
    db.observer = object()  # of the database, not of the counted metrics
    first.add(FIRES, amount=2)
    second.add(FIRES, amount=5)
    for metrics in (first, second, first):
        await db.tx(worker_metrics.store_of_server, metrics)
        assert metrics.current() == {}
    first.add(FIRES)
    await db.tx(worker_metrics.store_of_server, first)
    assert await db.read(worker_metrics.by_source) == {SERVERS: {FIRES_SERIES: [8.0]}}
    assert len(await db.read(lambda tx: list(tx.execute(select(metric_totals.c.source))))) == 1


async def test_what_the_engine_counts_equals_the_ledger(harness: Harness) -> None:
    """Fires, slots by verdict and runs by status, with slots that were missed and skipped for overlap."""
    metrics = harness.engine.metrics
    await harness.schedule(misfire="skip", overlap="skip")
    await harness.run_until(at("9:12"))
    await harness.start_at(at("11:15"))  # nothing was up: the slots are missed
    harness.fake_runner.long = lambda job: True
    await harness.run_until(at("11:45"))  # the run of 11:20 goes on: those of 11:30 and 11:40 are skipped
    await harness.release()
    slots = await harness.rows(select(slot_rows))
    fired = [slot for slot in slots if slot.job_id is not None]
    assert metrics.total(FIRES) == metrics.by_labels(SLOTS)["fired",] == len(fired) > 0
    other = sum(slot.count for slot in slots if slot.job_id is None)
    assert sum(number for (verdict,), number in metrics.by_labels(SLOTS).items() if verdict != "fired") == other > 0
    runs = await harness.rows(select(run_rows))
    assert {verdict for (verdict,) in metrics.by_labels(SLOTS)} == {"fired", "missed", "skipped"}
    assert metrics.by_labels(RUNS)["task", "success"] == len(runs) == metrics.total(DURATION, "task")


def test_adding_series_of_both_sides() -> None:
    values: Values = {("a",): [1.0]}
    add_to(values, {("a",): [2.0], ("b",): [3.0, 4.0]})
    assert values == {("a",): [3.0], ("b",): [3.0, 4.0]}
