"""Body and answer of `$diff`: what an edit of a schedule would change."""

from typing import Annotated, Literal

from pydantic import Field

from rota.app.api.models import LeftOutHoliday
from rota.core.resource_forms import DateText
from rota.core.schedule_form import ScheduleChanges
from rota.core.wire import Answer, At, example


class DiffBody(ScheduleChanges):
    """An edit to compare with the stored schedule: absent fields stay or, with `replace`, get their defaults."""

    model_config = example({"cron_expression": "0 3 * * *", "days": 7})

    days: Annotated[int, Field(ge=1, le=366)] | None = None
    replace: bool | None = None

    def changes(self) -> dict[str, object]:
        """Return the fields of the edit."""
        return {name: value for name, value in self.sent().items() if name not in ("days", "replace")}


class MovedSlot(Answer):
    source: At = Field(alias="from")
    to: At


class Clash(Answer):
    """Slots that fall on holidays of a calendar, or into a freeze."""

    type: Literal["calendar", "freeze"]
    name: str
    count: int
    days: list[DateText]


class UsualRun(Answer):
    """What the last successful runs took, up to 100 of them, and what they were charged."""

    runs: int
    median_seconds: float
    p95_seconds: float
    credits_per_run: float | None
    usd_per_run: float | None


class EstimatedCost(Answer):
    credits_before: int
    credits_after: int
    usd_before: float | None
    usd_after: float | None


class FieldChange(Answer):
    field: str
    before: object
    after: object


class SlotChanges(Answer):
    """Slots of a schedule before and after an edit, from `since` to `until`. Slots after `compared_until` are counted,
    but not compared. `added`, `removed` and `moved` have up to 100 slots each."""

    words_before: str | None
    words_after: str
    since: At
    until: At
    compared_until: At
    slots_before: int | None
    slots_after: int | None
    added_count: int
    removed_count: int
    moved_count: int
    added: list[At]
    removed: list[At]
    moved: list[MovedSlot]
    clashes: list[Clash]
    left_out: list[LeftOutHoliday]
    usual_run: UsualRun | None
    shortest_gap_seconds: float | None
    cost: EstimatedCost | None
    warnings: list[str]


class SlotImpact(SlotChanges):
    """Changes of slots and fields by an edit."""

    fields: list[FieldChange]
