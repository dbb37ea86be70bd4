import os
import sys
import time
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.schedules import crontab

from bench.peers import kit

app = Celery("bench", broker=kit.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=kit.SETTINGS.get("prefetch", 4),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    redbeat_redis_url=kit.URL,
    redbeat_lock_key=None,
)


@app.task(name="mark")
def mark(i: int) -> None:
    kit.mark(i)


def prepare() -> None:
    """Redis needs nothing."""


def enqueue(count: int) -> Any:
    with app.producer_pool.acquire(block=True) as producer:
        begun = time.perf_counter()
        for i in range(count):
            mark.apply_async((i,), producer=producer)
        return kit.since(begun)


def worker() -> None:
    words = ["-A", "bench.peers.celery", "worker", "-l", "ERROR", "-n", f"w{os.getpid()}@%h"]
    if "concurrency" in kit.SETTINGS:
        words += ["-c", str(kit.SETTINGS["concurrency"])]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    if "beat" in kit.SETTINGS:
        words += ["-B", "--scheduler", "redbeat.RedBeatScheduler"]
    os.execv(sys.executable, [sys.executable, "-m", "celery", *words])


def paced(numbers: list[int], gap: float) -> Any:
    with app.producer_pool.acquire(block=True) as producer:
        return kit.paced(numbers, gap, lambda i: mark.apply_async((i,), producer=producer))


def later(due_times: list[tuple[int, float]]) -> None:
    for i, at in due_times:
        mark.apply_async((i,), eta=datetime.fromtimestamp(at, UTC))


def schedules(count: int) -> Any:
    from redbeat import RedBeatSchedulerEntry

    begun = time.perf_counter()
    for i, (minute, hour, day, month) in kit.distant_crons(count):
        when = crontab(minute, hour, day_of_month=day, month_of_year=month)
        RedBeatSchedulerEntry(f"distant-{i}", "mark", when, args=[i], app=app).save()
    return kit.since(begun)


if __name__ == "__main__":
    kit.main(globals())
