"""Bodies and answers of catch-ups."""

from typing import Annotated, Literal

from pydantic import Field

from rota.core.catch_up import SPREAD_HOURS_MAX
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import Misfire
from rota.core.wire import Answer, At, Choice, Id, NameText, Reason, RequestBody, example

Gap = Annotated[Misfire, Choice]
SlotLimit = Annotated[
    int, Field(ge=1, le=FIRE_BATCH_SLOTS, description="with `gap` = `all`: at most so many, oldest first")
]
SpreadHours = Annotated[
    float,
    Field(
        gt=0, le=SPREAD_HOURS_MAX, allow_inf_nan=False, description="their jobs are due at even distances from now on"
    ),
]


class ApproveBody(RequestBody):
    model_config = example({"gap": "all", "limit": 20, "spread_hours": 6, "comment": "the warehouse has room tonight"})

    gap: Annotated[Gap, Field(description="which slots run: `all` (default), `once` (the latest) or `skip`")] | None = (
        None
    )
    limit: SlotLimit | None = None
    spread_hours: SpreadHours | None = None
    comment: Reason | None = None


class RejectBody(RequestBody):
    model_config = example({"comment": "the reports are of no use any more"})

    comment: Reason | None = None


class CatchUpPlan(Answer):
    """Slots that would run, and the estimate of their run time and cost from the last runs."""

    count: int
    first_slot: At | None
    last_slot: At | None
    run_seconds: float | None = Field(description="null without a successful run")
    credits: float | None
    usd: float | None
    ends_at: At | None = Field(description="if they run one after the other")
    waits_for: list[str] = Field(description="limits that it exceeds, so that it waits for an approval")


class CatchUpOptions(Answer):
    """What a resume would catch up, by its `gap`."""

    schedule: NameText
    skip: CatchUpPlan
    once: CatchUpPlan
    all: CatchUpPlan


class CatchUpSummary(Answer):
    id: Id
    schedule_id: Id
    schedule: NameText
    source: Literal["outage", "resume", "backfill"]
    status: Literal["open", "approved", "rejected", "withdrawn"]
    count: int
    first_slot: At
    last_slot: At
    reprocess: bool
    run_seconds: float | None
    credits: float | None
    usd: float | None
    waits_for: list[str]
    requested_by: Id | None
    requested_by_name: str | None
    requested_at: At
    decided_by: str | None
    decided_at: At | None
    comment: str | None
    gap: Literal["skip", "once", "all"] | None
    limit: int | None
    spread_seconds: int | None
    fired: int


class CatchUp(CatchUpSummary):
    slots: list[At]
