"""Bodies of calendars and queues, as in requests and files."""

from typing import Annotated, Literal

from pydantic import Field

from rota.core.calendar_sources import DATES_MAX, ICAL_BYTES_MAX
from rota.core.flow import MAX_BURST
from rota.core.wire import Name, RateText, RequestBody, StorableText, example

DateText = Annotated[str, Field(examples=["2026-12-24"])]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class QueueBody(RequestBody):
    """Limits and pause of a queue; a null limit removes it. `burst` needs a `rate`."""

    model_config = example({"max_running": 5, "rate": "100/1m"})

    max_running: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    rate: RateText | None = None
    burst: Annotated[int, Field(ge=1, le=MAX_BURST)] | None = None
    paused: bool | None = None


class CalendarChanges(RequestBody):
    """An edit of a calendar: absent fields stay; its dates are resolved again."""

    model_config = example({"dates": ["2026-12-24", "2026-12-31"]})

    holidays: Annotated[str, Field(max_length=100, examples=["NO", "DE-BY"]), StorableText] | None = None
    exchange: Annotated[str, Field(max_length=20, examples=["XOSL"]), StorableText] | None = None
    ical: Annotated[str, Field(max_length=ICAL_BYTES_MAX), StorableText] | None = None
    dates: Annotated[list[DateText], Field(min_length=1, max_length=DATES_MAX)] | None = None
    weekend: Annotated[list[Weekday], Field(max_length=6)] | None = None
    weekend_is_holiday: bool | None = None
    description: Annotated[str, Field(max_length=2000), StorableText] | None = None


class CalendarBody(CalendarChanges):
    """A new calendar: a name and one of `holidays`, `exchange`, `ical`, `dates`."""

    model_config = example({"name": "norway", "holidays": "NO"})

    name: Name
