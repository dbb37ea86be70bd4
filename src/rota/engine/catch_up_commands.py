"""Commands on passed slots: backfill a range of them, and decide catch-ups that wait for an approval."""

from dataclasses import replace
from datetime import datetime, timedelta

from rota.core import parse
from rota.core.catch_up import APPROVER, CATCH_UP_TRIGGER, NO_LIMITS, SPREAD_HOURS_MAX, CatchUpChoice, plan_catch_up
from rota.core.errors import Conflict, Invalid, Refused
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import Misfire, choice
from rota.core.timing import triggers
from rota.db.dialect import Tx
from rota.engine import backfill, catch_ups, past_slots, schedules, slot_followers, usual_runs
from rota.engine.backfill import Backfilled, BackfillRequest, PastSlots
from rota.engine.catch_ups import CatchUpRow, CatchUpSource, CatchUpStatus
from rota.engine.compute import compute
from rota.engine.decisions import MayApprove
from rota.engine.engine_base import EngineBase


class CatchUpCommands(EngineBase):
    async def backfill(
        self,
        org_id: str,
        key: str,
        *,
        since: object,
        until: object,
        reprocess: bool = False,
        limit: int = 100,
        spread_hours: float | None = None,
        dry_run: bool = False,
    ) -> Backfilled:
        """Fire past slots that did not run, now or spread over some hours. Beyond the limits of the installation they
        wait for an approval instead. A dry run only returns the plan."""
        now = self.clock.now()
        first, last = triggers.parse_instant(since, "from"), triggers.parse_instant(until, "to")
        if first > last:
            raise Invalid("to", until, f"lies before `from` ({first.isoformat()})")
        most = parse.whole(limit, "limit", 1, FIRE_BATCH_SLOTS)
        chosen_how = catch_up_choice(Misfire.ALL, most, spread_hours)
        request = BackfillRequest(
            chosen_how, self.settings.catch_up, reprocess, None if self.act is None else self.act.user_id
        )

        def read(tx: Tx) -> PastSlots:
            return backfill.read_past_slots(tx, schedules.read_with_clock(tx, org_id, key), first, last, now)

        before = await self.db.read(read)
        chosen = await compute(before.unfired, most, reprocess=reprocess)
        if dry_run or not chosen:
            return Backfilled(await self.db.read(backfill.price, before.schedule, chosen, request, now))
        return await self.write_and_wake(
            lambda tx: backfill.fire_past(tx, before, chosen, request, now=self.clock.now())
        )

    async def decide_catch_up(
        self,
        org_id: str,
        catch_up_id: str,
        chosen: CatchUpChoice | None,
        *,
        by: str,
        may: MayApprove,
        comment: str | None = None,
    ) -> CatchUpRow:
        """Fire the chosen slots of a catch-up that waits for an approval, or reject it with None; the others are
        missed. The same decision again changes nothing. Raises NotFound, Refused if the caller may not decide, or
        Conflict if it was decided otherwise."""
        now = self.clock.now()
        if not may(APPROVER):
            raise Refused(f"an admin decides about catch-ups, or a key with the scope approve:{APPROVER}")
        return await self.write_and_wake(lambda tx: decide(tx, org_id, catch_up_id, chosen, by, comment, now))


def decide(
    tx: Tx, org_id: str, catch_up_id: str, chosen: CatchUpChoice | None, by: str, comment: str | None, now: datetime
) -> CatchUpRow:
    """Decide about a catch-up in the caller's transaction; see `CatchUpCommands.decide_catch_up`."""
    row = catch_ups.get(tx, org_id, catch_up_id)
    if row.status is CatchUpStatus.OPEN:
        due = schedules.lock(tx, org_id, row.schedule_id)
        row = catch_ups.get(tx, org_id, catch_up_id)  # read again: it may have been decided before the lock
    status = CatchUpStatus.REJECTED if chosen is None else CatchUpStatus.APPROVED
    values: dict[str, object] = {
        "status": status.value, "decided_by": by, "decided_at": now, "comment": comment,
        "gap": None if chosen is None else chosen.gap.value,
        "slot_limit": None if chosen is None else chosen.limit,
        "spread_seconds": None if chosen is None else round(chosen.spread.total_seconds()),
    }  # fmt: skip
    if row.status is not CatchUpStatus.OPEN:
        compared = ("status", "gap", "slot_limit", *(("spread_seconds",) if values["spread_seconds"] else ()))
        if all(getattr(row, name) == values[name] for name in compared):
            return row
        raise Conflict(
            f"catch-up {row.id} was {row.status.value}" + (f" by {row.decided_by}" if row.decided_by else "")
        )
    schedule, fired = due.schedule, 0
    if chosen is not None:
        chosen = chosen.with_default_spread(schedule.catch_up_spread)
        values["spread_seconds"] = round(chosen.spread.total_seconds())
    wanted = () if chosen is None else chosen.select(row.slots)
    if chosen is not None and wanted:
        past = replace(backfill.read_past_slots(tx, due, wanted[0], wanted[-1], now), waiting=())
        left = None
        if row.source is not CatchUpSource.BACKFILL and schedule.max_runs is not None:
            left = max(0, schedule.max_runs - due.fired)
        usual = usual_runs.usual_run(tx, org_id, schedule.id)
        how = replace(chosen, gap=Misfire.ALL, limit=left)
        plan = plan_catch_up(past.of(wanted, reprocess=row.reprocess), how, usual, NO_LIMITS, now)
        if row.source is CatchUpSource.BACKFILL:
            past_slots.fire_slots(tx, schedule, plan, now, CATCH_UP_TRIGGER)
        else:
            past_slots.fire_caught_up(tx, schedule, plan, now)
        fired = len(plan.slots)
        slot_followers.fire_again(tx, schedule, plan.slots, now)
    catch_ups.close(tx, row, {**values, "fired": fired})
    return catch_ups.get(tx, org_id, catch_up_id)


def catch_up_choice(gap: object, limit: int | None = None, spread_hours: float | None = None) -> CatchUpChoice:
    """Return which passed slots are to run, from the fields of a request. Raises Invalid."""
    policy = choice(Misfire, gap, "gap")
    for field, value in (("limit", limit), ("spread_hours", spread_hours)):
        if value is not None and policy is not Misfire.ALL:
            raise Invalid(field, value, "goes with `gap` = `all` only")
    if spread_hours is not None and not 0 < spread_hours <= SPREAD_HOURS_MAX:
        raise Invalid("spread_hours", spread_hours, f"is not more than 0 and at most {SPREAD_HOURS_MAX}")
    return CatchUpChoice(policy, limit, timedelta(hours=spread_hours or 0))
