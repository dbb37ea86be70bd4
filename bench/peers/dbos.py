import threading
import time
from typing import Any

from dbos import DBOS, DBOSClient

from bench.peers import kit

JOB: Any = {"queue_name": "queue", "workflow_name": "mark", "app_version": "1"}

DBOS(
    config={
        "name": "bench",
        "system_database_url": kit.URL,
        "application_version": "1",
        "log_level": "ERROR",
        "run_admin_server": False,
    }
)


@DBOS.workflow(name="mark")
def mark(i: int) -> None:
    kit.mark(i)


@DBOS.step()
def step(i: int) -> None:
    kit.mark(i)


@DBOS.workflow(name="mark_in_a_step")
def mark_in_a_step(i: int) -> None:
    step(i)


@DBOS.step()
def small_step(number: int) -> int:
    return number


@DBOS.workflow(name="five_steps")
def five_steps(i: int) -> None:
    for number in range(4):
        small_step(number)
    step(i)


@DBOS.workflow(name="tick")
def tick(at: Any, i: int) -> None:  # noqa: ARG001
    kit.mark(i)


def launch() -> None:
    DBOS.launch()
    DBOS.register_queue("queue", **kit.SETTINGS)


def prepare() -> None:
    launch()
    DBOS.destroy()


def client() -> DBOSClient:
    return DBOSClient(system_database_url=kit.URL)


def job(steps: int) -> Any:
    return {**JOB, "workflow_name": ("mark", "mark_in_a_step", "five_steps")[min(steps, 2)]}


def enqueue(count: int, steps: int = 0) -> Any:
    dbos = client()
    begun = time.perf_counter()
    for part in kit.chunks(count):
        with dbos._sys_db.engine.begin() as connection:  # its way to enqueue several: a transaction of the caller's
            for i in part:
                dbos.enqueue_in_transaction(connection, job(steps), i)
    return kit.since(begun)


def worker() -> None:
    launch()
    threading.Event().wait()


def paced(numbers: list[int], gap: float, steps: int = 0) -> Any:
    dbos = client()
    return kit.paced(numbers, gap, lambda i: dbos.enqueue(job(steps), i))


def later(due_times: list[tuple[int, float]]) -> None:
    dbos = client()
    with dbos._sys_db.engine.begin() as connection:
        for i, at in due_times:
            dbos.enqueue_in_transaction(connection, {**JOB, "delay_seconds": at - time.time()}, i)


def schedules(count: int) -> Any:
    dbos = client()
    new: list[Any] = [
        {
            "schedule_name": f"distant-{i}",
            "workflow_name": "tick",
            "schedule": "{} {} {} {} *".format(*when),
            "context": i,
        }
        for i, when in kit.distant_crons(count)
    ]
    begun = time.perf_counter()
    for part in kit.chunks(count):
        dbos.apply_schedules([new[at] for at in part])
    return kit.since(begun)


if __name__ == "__main__":
    kit.main(globals())
