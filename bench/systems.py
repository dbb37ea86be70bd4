"""The systems that are measured: Rota, and the peers that a user would choose instead.

`best` are the fastest settings known for the peer, found by experiment; `default` are its default settings.
`unfinished` counts the jobs that are left: a statement, or Redis commands whose answers are added.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import dependencies
from bench.figures import OURS

PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class System:
    name: str
    store: str  # sqlite, postgresql or redis
    unfinished: str | Sequence[str]
    keeps: str  # of a finished job
    packages: tuple[str, ...] = ()  # from Python's index
    modules: tuple[str, ...] = ()  # from npm
    best: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    durable: Mapping[str, Any] = field(default_factory=dict)  # instead of `best`, where each step waits for a commit
    jobs: int = 20_000  # of W1; fewer where they would take minutes
    single_process: bool = False  # only one process, and only that process notices new jobs at once
    schedules: int = 0  # how many can be created at run time
    scheduling: Mapping[str, Any] = field(default_factory=dict)  # settings of a worker that also fires schedules

    @property
    def label(self) -> str:
        return self.name + (" (Redis)" if self.store == "redis" else "")

    @property
    def group(self) -> str:
        """The database whose group it is compared in."""
        return "SQLite" if self.store == "sqlite" else "PostgreSQL"

    def program(self) -> list[str]:
        """Return the command that starts it. Raises Unavailable if it cannot be installed."""
        if self.name == OURS:
            return [sys.executable, "-m", "bench.peers.rota"]
        script = self.name.replace("-", "_")
        if self.modules:
            return [str(dependencies.node_with(self.modules)), str(PEERS / f"{script}.mjs")]
        return [str(dependencies.python_with(self.packages)), "-m", f"bench.peers.{script}"]

    def versions(self) -> dict[str, str]:
        return dependencies.versions(self.packages, self.modules)


NOTHING = "nothing: the row or message is gone"
LEDGER = "a full row for each attempt (input, times, worker, outcome or error), for 30 days"
APSCHEDULER: dict[str, Any] = {
    "packages": ("apscheduler<4", "sqlalchemy", "psycopg[binary]"),
    "unfinished": "SELECT count(*) FROM apscheduler_jobs WHERE next_run_time <= {now}",
    "keeps": NOTHING + " before the job runs (at most once)",
    "jobs": 2_500,
    "single_process": True,
    "schedules": 20_000,
}
DBOS: dict[str, Any] = {
    "packages": ("dbos",),
    "keeps": "the workflow's row with input and output, until it is deleted",
    "jobs": 2_500,
    "best": {"polling_interval_sec": 0.05, "worker_concurrency": 100},
    "schedules": 1_000,  # a thread for each
}
DBOS_UNFINISHED = "SELECT count(*) FROM {} WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')"

SYSTEMS = [
    System(
        OURS,
        "postgresql",
        "SELECT count(*) FROM jobs",
        LEDGER,
        best={"concurrency": 50},
        durable={"concurrency": 200},
        schedules=100_000,
    ),
    System(
        "procrastinate",
        "postgresql",
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        "the job's row, and an event row for each change of it, until they are deleted",
        packages=("procrastinate", "psycopg[binary,pool]"),
        jobs=2_500,
        best={"concurrency": 5, "fetch_job_polling_interval": 0.1},
    ),
    System(
        "pgqueuer",
        "postgresql",
        "SELECT count(*) FROM pgqueuer",
        "a log row for each change of state, without the payload, until it is deleted",
        packages=("pgqueuer[asyncpg]", "uvloop"),
        best={"batch_size": 500, "pool": 10, "uvloop": True},
    ),
    System(
        "graphile-worker",
        "postgresql",
        "SELECT count(*) FROM graphile_worker._private_jobs",
        NOTHING,
        modules=("graphile-worker",),
        best={
            "concurrentJobs": 24,
            "maxPoolSize": 10,
            "localQueue": {"size": 500},
            "completeJobBatchDelay": 0,
            "failJobBatchDelay": 0,
            "pollInterval": 100,
        },
    ),
    System(
        "pg-boss",
        "postgresql",
        "SELECT count(*) FROM pgboss.job WHERE name = 'mark' AND state < 'completed'",
        "the job's row, for 7 days",
        modules=("pg-boss@>=12 <12.36",),  # later versions require a package that does not exist
        best={
            "batchSize": 1000,
            "pollingIntervalSeconds": 0.5,
            "notifyPollingIntervalSeconds": 0.5,
            "burstWhenBatchFull": True,
            "notify": True,
        },
        schedules=100_000,
    ),
    System("apscheduler", "postgresql", **APSCHEDULER),
    System("dbos", "postgresql", DBOS_UNFINISHED.format("dbos.workflow_status"), **DBOS),
    System(
        "bullmq",
        "redis",
        ("LLEN bull:mark:wait", "LLEN bull:mark:active", "ZCOUNT bull:mark:delayed -inf {due}"),
        NOTHING + " with the best settings; everything, in memory, by default",
        modules=("bullmq", "ioredis"),
        best={"concurrency": 100, "removeOnComplete": True},
        schedules=100_000,
    ),
    System(
        "celery",
        "redis",
        ("LLEN celery", "HLEN unacked"),
        NOTHING + " before the job runs (at most once); no result is kept",
        packages=("celery[redis]", "celery-redbeat"),
        jobs=2_500,
        best={"concurrency": 2, "prefetch": 100},
        schedules=100_000,
        scheduling={"beat": True},
    ),
    System(
        "huey",
        "redis",
        ("LLEN huey.redis.huey", "ZCARD huey.schedule.huey"),
        NOTHING + " before the job runs (at most once); no result is kept",
        packages=("huey", "redis"),
        best={"workers": 2},
    ),
    System(
        OURS,
        "sqlite",
        "SELECT count(*) FROM jobs",
        LEDGER,
        best={"concurrency": 50},
        durable={"concurrency": 200},
        schedules=100_000,
    ),
    System(
        "huey",
        "sqlite",
        "SELECT (SELECT count(*) FROM task) + (SELECT count(*) FROM schedule)",
        NOTHING + " before the job runs (at most once); no result is kept",
        packages=("huey", "redis"),
        best={"workers": 1, "initial_delay": 0.01, "max_delay": 0.01},
    ),
    System("apscheduler", "sqlite", **APSCHEDULER),
    System("dbos", "sqlite", DBOS_UNFINISHED.format("workflow_status"), **DBOS),
]
NAMES = sorted({system.name for system in SYSTEMS} - {OURS})
