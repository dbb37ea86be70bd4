"""Settings of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from rota.core.catch_up import NO_LIMITS, CatchUpLimits
from rota.core.policy import TRANSIENT_RETRY, WAKE_MAX, WAKE_MIN, Billing, Retry


@dataclass(frozen=True, slots=True)
class ObjectStoreSettings:
    """Where large contents of artifacts are kept. The credentials are in the variables of the provider."""

    url: str
    endpoint: str = ""  # of an S3 server that is not Amazon's
    inline_bytes: int = 256 * 1024  # contents up to this stay in the database
    keep: timedelta = timedelta(days=7)  # how long an object is kept after its artifact: backups may name it


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an operator may turn; see the settings page for each."""

    lease: timedelta = timedelta(seconds=30)
    misfire_grace: timedelta = timedelta(seconds=60)
    catch_up: CatchUpLimits = NO_LIMITS  # of several passed slots that fire without an approval
    cancel_grace: timedelta = timedelta(seconds=10)
    concurrency: int = 50
    run_as: Mapping[str, str] | None = None  # users for commands, by the slug of their org; "" for all others
    default_timeout: timedelta | None = None  # of runs whose schedule and target name none
    keep_success: timedelta = timedelta(days=30)
    keep_failed: timedelta = timedelta(days=90)
    keep_signals: timedelta = timedelta(days=30)  # that no run has waited for
    keep_audit: timedelta = timedelta(days=400)
    max_schedules_per_task: int | None = None
    capture_locals: bool = False  # record the variables of functions that raise an error
    artifact_limit: int = 10 * 1024 * 1024  # bytes
    objects: ObjectStoreSettings | None = None  # None: all artifacts are in the database
    billing: Billing = Billing.RECORD
    markup: Decimal = Decimal(2)  # price over cost
    handler_limit: timedelta = timedelta(seconds=300)  # of a step of a workflow's handler, or a call of a connector
    reconcile_limit: timedelta = timedelta(seconds=30)
    wake_min: timedelta = WAKE_MIN  # how soon and how late a consumer may ask to be woken
    wake_max: timedelta = WAKE_MAX
    transient_retry: Retry = TRANSIENT_RETRY  # of transient failures of jobs without a policy of their own
    isolates_suspects: bool = True  # a job that may have killed a worker runs in a child process

    def user_of(self, org: str) -> str | None:
        """The user that runs an org's commands; None: that of the worker."""
        users = self.run_as or {}
        return users.get(org) or users.get("")
