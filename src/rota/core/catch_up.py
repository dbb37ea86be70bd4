"""Catch-up of passed slots: which of them run and when, what they take and cost, and whether that waits for an
approval. Pure.

The scheduler, resume, backfill and decisions about waiting catch-ups share `plan_catch_up`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rota.core.policy import Misfire

AWAITING_APPROVAL = "awaiting_approval"  # reason of missed slots whose catch-up waits for a decision
NOT_APPROVED = "not_approved"  # reason of missed slots that a decision left out; they wait whenever they are requested
CATCH_UP_TRIGGER = "catch_up"  # of jobs of an approved or spread catch-up
APPROVER = "catch-up"  # admins decide, and keys with the scope `approve:catch-up`
SPREAD_HOURS_MAX = 720


@dataclass(frozen=True, slots=True)
class UsualRun:
    """Durations in seconds of the last successful runs; credits and dollars per run if some were charged."""

    runs: int
    median_seconds: float
    p95_seconds: float
    credits_per_run: float | None
    usd_per_run: float | None


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """What a catch-up of several slots may need without an approval; None: no limit."""

    slots: int | None = None
    run_seconds: int | None = None
    credits: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return (self.slots, self.run_seconds, self.credits) != (None, None, None)


@dataclass(frozen=True, slots=True)
class CatchUpChoice:
    """Which passed slots run: none, the latest, or all, oldest first up to `limit`; evenly over `spread` from now."""

    gap: Misfire = Misfire.ALL
    limit: int | None = None
    spread: timedelta = timedelta(0)

    def select(self, slots: Sequence[datetime]) -> Sequence[datetime]:
        """Return the chosen slots of these, which are ascending."""
        match self.gap:
            case Misfire.SKIP:
                return ()
            case Misfire.ONCE:
                return slots[-1:]
            case Misfire.ALL:
                return slots[: self.limit]

    def with_default_spread(self, spread: timedelta) -> "CatchUpChoice":
        """Return the choice with the spread of a schedule, if it takes all slots and names none itself."""
        return replace(self, spread=spread) if self.gap is Misfire.ALL and not self.spread else self

    def run_times(self, count: int, now: datetime) -> list[datetime]:
        """Return when that many jobs are due: the first now, the others at even distances."""
        return [now + self.spread * position / count for position in range(count)]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Slots that are to run, the estimate of their run time and cost, and why they wait for an approval."""

    slots: Sequence[datetime]
    run_at: Sequence[datetime]
    run_seconds: float | None  # None without a successful run to learn from
    credits: float | None
    usd: float | None
    ends_at: datetime | None  # if they run one after the other
    waits_for: Sequence[str] = ()


def lowered(limits: CatchUpLimits, slots: int | None) -> CatchUpLimits:
    """Return limits with the number of slots that a schedule sets itself, unless the installation's is lower."""
    return limits if slots is None else replace(limits, slots=min(slots, limits.slots or slots))


NO_LIMITS = CatchUpLimits()
ALL_SLOTS = CatchUpChoice()


def plan_catch_up(
    slots: Sequence[datetime],
    choice: CatchUpChoice,
    usual: UsualRun | None,
    limits: CatchUpLimits,
    now: datetime,
    *,
    earlier: int = 0,
) -> CatchUp:
    """Return the catch-up of the chosen slots. It waits for an approval if it exceeds a limit; `earlier` slots that
    were caught up before count with it. One slot never waits."""
    chosen = choice.select(slots)
    run_at = choice.run_times(len(chosen), now)
    total = timedelta(0) if usual is None else timedelta(seconds=len(chosen) * usual.median_seconds)
    ends_at = None
    if usual is not None and chosen:
        ends_at = max(now + total, run_at[-1] + timedelta(seconds=usual.median_seconds))
    return CatchUp(
        chosen,
        run_at,
        None if usual is None else total.total_seconds(),
        cost_of(len(chosen), None if usual is None else usual.credits_per_run),
        cost_of(len(chosen), None if usual is None else usual.usd_per_run),
        ends_at,
        exceeded(len(chosen) + earlier, usual, limits) if chosen else (),
    )


def cost_of(count: int, per_run: float | None) -> float | None:
    return None if per_run is None else round(count * per_run, 4)


def exceeded(count: int, usual: UsualRun | None, limits: CatchUpLimits) -> tuple[str, ...]:
    """Return which limits that many slots exceed, in words. Without a successful run only their number is known."""
    if count < 2:
        return ()
    reasons = []
    if limits.slots is not None and count > limits.slots:
        reasons.append(f"{count} slots, more than {limits.slots}")
    seconds = 0.0 if usual is None else count * usual.median_seconds
    if limits.run_seconds is not None and seconds > limits.run_seconds:
        reasons.append(f"about {seconds:.0f} s of run time, more than {limits.run_seconds} s")
    credits = 0.0 if usual is None else count * (usual.credits_per_run or 0)
    if limits.credits is not None and credits > limits.credits:
        reasons.append(f"about {credits:.0f} credits, more than {limits.credits}")
    return tuple(reasons)
