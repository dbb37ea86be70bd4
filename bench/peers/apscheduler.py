"""A scheduler, not a queue: jobs are due now, and only the process that adds them notices at once.

So `paced` and `later` are the scheduler themselves, and stay.
"""

import logging
import time
from datetime import UTC, datetime
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from bench.peers import kit

MARK = "bench.peers.kit:mark"
logging.disable(logging.CRITICAL)


def scheduler(paused: bool = False) -> BackgroundScheduler:
    store = SQLAlchemyJobStore(url=kit.URL.replace("postgresql:", "postgresql+psycopg:"))
    background = BackgroundScheduler(
        jobstores={"default": store}, job_defaults={"misfire_grace_time": None}, timezone=UTC
    )
    background.start(paused=paused)
    return background


def prepare() -> None:
    scheduler(paused=True).shutdown()


def enqueue(count: int) -> Any:
    background = scheduler(paused=True)
    begun = time.perf_counter()
    for i in range(count):
        background.add_job(MARK, "date", run_date=datetime.now(UTC), args=(i,))
    took = kit.since(begun)
    background.shutdown()
    return took


def worker() -> None:
    scheduler()
    stay()


def paced(numbers: list[int], gap: float) -> None:
    background = scheduler()
    kit.answer(kit.paced(numbers, gap, lambda i: background.add_job(MARK, args=(i,))))
    stay()


def later(due_times: list[tuple[int, float]]) -> None:
    background = scheduler()
    for i, at in due_times:
        background.add_job(MARK, "interval", hours=1, start_date=datetime.fromtimestamp(at, UTC), args=(i,))
    kit.answer(None)
    stay()


def schedules(count: int) -> Any:
    background = scheduler(paused=True)
    begun = time.perf_counter()
    for i, when in kit.distant_crons(count):
        background.add_job(MARK, CronTrigger.from_crontab("{} {} {} {} *".format(*when), UTC), args=(i,))
    took = kit.since(begun)
    background.shutdown()
    return took


def stay() -> None:
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    kit.main(globals())
