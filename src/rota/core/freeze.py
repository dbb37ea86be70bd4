"""Freeze windows: time ranges announced ahead in which slots do not fire. Pure: the caller passes the time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rota.core.errors import Invalid, together

FREEZE_REASON = "freeze"  # reason of slots that a window skipped
WINDOW_SPAN_MAX = timedelta(days=366)


class FreezeMode(StrEnum):
    """What happens to the slots of a freeze window."""

    SKIP = "skip"  # they are skipped
    HOLD = "hold"  # they are due at the end of the window


@dataclass(frozen=True, slots=True)
class FreezeWindow:
    """A half-open time range, and the schedules that it covers: those of a kind, a queue and a tag; None covers all."""

    id: str
    org_id: str
    name: str
    starts_at: datetime
    ends_at: datetime
    mode: FreezeMode
    reason: str
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None

    def covers(self, kind: str | None, queue: str | None, tags: Iterable[str]) -> bool:
        """Whether it applies to schedules of this kind and queue with these tags."""
        return self.kind in (None, kind) and self.queue in (None, queue) and (self.tag is None or self.tag in tags)

    def contains(self, at: datetime) -> bool:
        return self.starts_at <= at < self.ends_at

    @property
    def note(self) -> str:
        """Its name and reason, for people."""
        return f"{self.name}: {self.reason}" if self.reason else self.name

    @property
    def scope(self) -> str:
        """The schedules that it covers, in words."""
        parts = [
            f"{field} {value}"
            for field, value in (("kind", self.kind), ("queue", self.queue), ("tag", self.tag))
            if value is not None
        ]
        return f"schedules of {', '.join(parts)}" if parts else "all schedules"

    @property
    def words(self) -> str:
        """What it does, as a short English phrase."""
        span = f"from {self.starts_at:%Y-%m-%d %H:%M} to {self.ends_at:%Y-%m-%d %H:%M} UTC"
        if self.mode is FreezeMode.HOLD:
            return f"slots {span} are held until its end by freeze {self.name}"
        return f"no slots {span} because of freeze {self.name}"


def window_at(windows: Iterable[FreezeWindow], at: datetime) -> FreezeWindow | None:
    """Return the window that decides about a slot: one that skips it, else the one that holds it longest."""
    covering = [window for window in windows if window.contains(at)]
    skipping = (window for window in covering if window.mode is FreezeMode.SKIP)
    return next(skipping, max(covering, key=lambda window: window.ends_at, default=None))


def check_window(starts_at: datetime, ends_at: datetime, now: datetime, *, begun: bool = False) -> None:
    """Raise Invalid unless a window begins now or later (one that has begun may go on), ends after that and in the
    future, and is at most a year long."""
    errors = []
    if starts_at < now and not begun:
        errors.append(Invalid("starts_at", starts_at.isoformat(), "lies in the past: its slots are decided already"))
    if ends_at <= max(now, starts_at):
        errors.append(Invalid("ends_at", ends_at.isoformat(), "must lie after `starts_at` and in the future"))
    elif ends_at - starts_at > WINDOW_SPAN_MAX:
        remedy = f"lies over {WINDOW_SPAN_MAX.days} days after `starts_at`; announce several windows"
        errors.append(Invalid("ends_at", ends_at.isoformat(), remedy))
    if errors:
        raise together(errors)
