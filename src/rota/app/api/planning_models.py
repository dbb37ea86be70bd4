"""Bodies and answers of freeze windows and simulations."""

from typing import Annotated, Literal

from pydantic import Field

from rota.core.freeze import FreezeMode
from rota.core.wire import Answer, At, Choice, Id, Instant, Label, Name, NameText, Reason, RequestBody, example
from rota.reports.simulation import Durations

Mode = Annotated[FreezeMode, Choice]


class FreezeWindowChanges(RequestBody):
    """An edit of a freeze window: absent fields stay; null removes `kind`, `queue` or `tag`."""

    model_config = example({"ends_at": "2099-01-03T06:00:00+00:00"})

    starts_at: Instant | None = None
    ends_at: Instant | None = None
    reason: Reason | None = None
    mode: Annotated[Mode, Field(description="`skip` its slots, or `hold` them until its end")] | None = None
    kind: Annotated[Label, Field(description="covers schedules of this kind; absent: of all kinds")] | None = None
    queue: Annotated[Label, Field(description="covers schedules of this queue; absent: of all queues")] | None = None
    tag: Annotated[Label, Field(description="covers schedules with this tag; absent: all")] | None = None


class FreezeWindowBody(FreezeWindowChanges):
    """A new freeze window; without `starts_at` it begins now, without `kind`, `queue` and `tag` it covers all
    schedules."""

    model_config = example(
        {
            "name": "year-end",
            "starts_at": "2098-12-20T00:00:00+00:00",
            "ends_at": "2099-01-02T00:00:00+00:00",
            "reason": "no changes while the books are closed",
            "tag": "finance",
        }
    )

    name: Name
    ends_at: Instant


class FreezeWindowSummary(Answer):
    id: Id
    name: NameText
    starts_at: At
    ends_at: At
    mode: FreezeMode
    reason: str
    kind: str | None
    queue: str | None
    tag: str | None
    state: Literal["upcoming", "active", "ended"]
    words: str
    created_by: Id | None
    created_by_name: str | None
    created_at: At
    updated_at: At


class FreezeWindow(FreezeWindowSummary):
    schedules: list[str] = Field(description="up to 100 of the schedules that it covers, by name")


# simulation


class OutageBody(RequestBody):
    """A time range in which no scheduler and no worker runs."""

    model_config = example({"from": "2026-05-05T02:00:00+00:00", "to": "2026-05-05T05:00:00+00:00"})

    since: Instant = Field(alias="from")
    until: Instant = Field(alias="to")


class SimulateBody(RequestBody):
    """A time range and what is assumed; `workers` as many workers as are alive by default."""

    model_config = example({"from": "2026-05-05T00:00:00+00:00", "to": "2026-05-06T00:00:00+00:00"})

    since: Instant = Field(alias="from")
    until: Instant = Field(alias="to")
    outages: Annotated[list[OutageBody], Field(max_length=20)] | None = None
    durations: Annotated[Durations, Choice] | None = None
    workers: Annotated[int, Field(ge=1, le=1000)] | None = None


class SimulatedSlot(Answer):
    """A slot, or a range of slots that did not fire; without a verdict it still waits at the end."""

    schedule: NameText
    slot: At
    last_slot: At
    count: int | None
    verdict: Literal["ran", "skipped", "missed", "coalesced"] | None
    reason: str | None
    starts_at: At | None
    finishes_at: At | None


class SimulationTotals(Answer):
    ran: int
    skipped: int
    missed: int
    coalesced: int
    waiting: int
    reasons: dict[str, int]
    seconds: float
    credits: int
    longest_wait_seconds: float


class SimulatedLoad(Answer):
    hour: At
    queue: NameText
    host: str | None
    runs: int
    seconds: float


class Simulation(Answer):
    """What would happen; `until` is where a truncated simulation ended."""

    since: At = Field(alias="from")
    to: At
    until: At
    slots: list[SimulatedSlot]
    totals: SimulationTotals
    load: list[SimulatedLoad]
    unknown_durations: list[str] = Field(description="schedules without a successful run: a minute is assumed")
    truncated: bool
