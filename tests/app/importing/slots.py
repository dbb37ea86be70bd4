"""The slots of an imported schedule, to compare with those of the scheduler that it came from."""

from collections.abc import Mapping
from datetime import datetime
from itertools import islice

from rota.app.importing.report import TASK_DEFAULTS
from rota.core.schedule_form import parse_schedule
from rota.core.timing.triggers import LATEST, slots_between


def next_slots(fields: Mapping[str, object], after: datetime, count: int) -> list[datetime]:
    """Return the first slots of timing fields after an instant."""
    body = {"name": "x", "target": "x", **fields}
    schedule = parse_schedule(body, org_id="", defaults=TASK_DEFAULTS, now=after, source="file", by=None)
    return list(islice(slots_between(schedule.timing, after, LATEST), count))
