"""Records of the tables of pipelines, built by column name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.core.timing import stored, triggers


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A row of `pipelines`."""

    id: str
    org_id: str
    path: str
    type: str
    sql: str | None
    function: str | None
    reads: list[str]
    description: str
    owner_id: str | None
    version: int
    max_runs: int | None
    max_age_days: int | None
    increment: Mapping[str, Sequence[str]] | None
    source: str
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A row of `pipeline_triggers`, with the timing of its schedule, if it has one."""

    id: str
    org_id: str
    pipeline_id: str
    type: str
    schedule_id: str | None
    token_hash: str | None
    cooldown_seconds: int
    enabled: bool
    waits: bool
    last_triggered_at: datetime | None
    last_job_id: str | None
    source: str
    created_at: datetime
    timing: Mapping[str, object] | None

    @property
    def cron(self) -> str | None:
        """The cron expression of its schedule."""
        trigger = None if self.timing is None else stored.load(self.timing).trigger
        return trigger.expression if isinstance(trigger, triggers.Cron) else None

    @property
    def ready_at(self) -> datetime:
        """When its cooldown ends."""
        cooldown = timedelta(seconds=self.cooldown_seconds)
        return (self.last_triggered_at or self.created_at - cooldown) + cooldown


@dataclass(frozen=True, slots=True)
class FiringTrigger(TriggerRow):
    """A trigger with the pipeline that it runs and the slug of its org."""

    path: str
    runs: str  # type of the pipeline
    function: str | None
    slug: str
