"""Commands on schedules: create, edit, delete, pause, skip, run now, freeze. Each is one transaction, except
that commands on many schedules change them in batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from rota.core import parse, schedule_form
from rota.core.catch_up import CatchUpChoice
from rota.core.errors import Conflict, Invalid, TooMuchEffort, together
from rota.core.kinds import traits_of
from rota.core.model import DueSchedule, Schedule
from rota.core.policy import parse_overlap
from rota.core.schedule_form import ScheduleBody
from rota.core.timing_form import Calendars
from rota.db.dialect import Tx
from rota.engine import calendars, firing, pauses, schedule_rows, schedules
from rota.engine.authority import check_grant, check_owner, with_grant
from rota.engine.calendar_commands import CalendarCommands
from rota.engine.catch_up_commands import CatchUpCommands, catch_up_choice
from rota.engine.compute import compute
from rota.engine.extensions import DeletesWithSchedule
from rota.engine.freeze_commands import FreezeCommands

ScheduleCheck = Callable[[Schedule, Schedule | None], None]  # what a schedule becomes, and what is stored
BULK_SCHEDULES_MAX = 10_000
UNDECLARED_REASON = "no longer declared in the program"  # pause reason of a schedule that vanished from its program
CHANGE_BATCH_ROWS = 50  # schedules that one transaction changes


class ScheduleCommands(CalendarCommands, CatchUpCommands, FreezeCommands):
    async def create_schedules(
        self,
        org_id: str,
        bodies: Sequence[Mapping[str, object] | ScheduleBody],
        *,
        by: str | None = None,
        source: str = "api",
        check: ScheduleCheck | None = None,
    ) -> list[Schedule]:
        """Create schedules from their flat form, all or none. Raises Invalid with all errors; `check` raises if the
        caller may not create one of them."""
        if not 1 <= len(bodies) <= BULK_SCHEDULES_MAX:
            raise Invalid("items", len(bodies), f"is not a number from 1 to {BULK_SCHEDULES_MAX}")
        now = self.clock.now()
        new: list[Schedule] = []
        errors: list[Invalid] = []
        routes: dict[tuple[str, str], str] = {}  # of targets that are given nothing: looked up once for all
        known = await self.calendars_named(org_id, map(fields_of, bodies))

        def parse_all() -> list[Schedule | Invalid]:
            return [self.parsed(body, org_id=org_id, now=now, source=source, by=by, known=known) for body in bodies]

        for position, schedule in enumerate(await compute(parse_all)):
            try:
                if isinstance(schedule, Invalid):
                    raise schedule
                if check is not None:
                    check(schedule, None)
                route = routes.get((schedule.kind, schedule.target)) if schedule.input is None else None
                if route is None:
                    route = await self.resolve(schedule)
                    if schedule.input is None:
                        routes[schedule.kind, schedule.target] = route
                new.append(schedule.with_route(route))
            except Invalid as error:
                errors += error.all if len(bodies) == 1 else [at_item(item_error, position) for item_error in error.all]
        if errors:
            raise together(errors)

        def step(tx: Tx) -> list[Schedule]:
            calendars.hold(tx, org_id, new)
            granted = [with_grant(tx, self.runners, self.act, schedule, now) for schedule in new]
            schedules.insert(tx, granted, now, rows)
            return granted

        rows = await compute(schedule_rows.new_rows, new, now)
        created = await self.db.tx(step)
        self.signal("clocks")
        return created

    def parsed(
        self,
        body: Mapping[str, object] | ScheduleBody,
        *,
        org_id: str,
        now: datetime,
        source: str,
        by: str | None,
        known: Calendars,
    ) -> Schedule | Invalid:
        """Return a schedule from its flat form, or its validation error. Raises TooMuchEffort."""
        try:
            return schedule_form.parse_schedule(
                body, org_id=org_id, defaults=self.defaults, now=now, source=source, by=by, calendars=known
            )
        except TooMuchEffort:
            raise
        except Invalid as error:
            return error

    async def edit_schedule(
        self,
        org_id: str,
        key: str,
        changes: Mapping[str, object],
        *,
        expected: int | None = None,
        whole: bool = False,
        by_manager: bool = False,
        check: ScheduleCheck | None = None,
    ) -> Schedule:
        """Change fields of a schedule; the others keep their values or, with `whole`, get their defaults.
        Raises Conflict if the schedule is managed elsewhere, unless `by_manager`. `check` raises if the caller may
        not make this change."""
        now = self.clock.now()
        parse_change = schedule_form.parse_put if whole else schedule_form.parse_patch
        before = await self.db.read(schedules.get, org_id, key)
        known = await self.calendars_named(org_id, [changes])
        edited = parse_change(before, changes, defaults=self.defaults, now=now, calendars=known)
        route = await self.resolve(edited) if whole or {"target", "input"} & set(changes) else before.route

        def step(tx: Tx) -> Schedule:
            due = schedules.lock(tx, org_id, before.id)
            new = parse_change(due.schedule, changes, defaults=self.defaults, now=now, calendars=known)
            calendars.hold(tx, org_id, [new])
            if not by_manager:
                check_managed_fields(due.schedule, new)
            if check is not None:
                check(new, due.schedule)
            if {"target", "grant_id", "input"} & set(changes):
                new = with_grant(tx, self.runners, self.act, new, now, due.schedule)
            return schedules.replace_schedule(tx, due, replace(new, route=route), now, expected)

        return await self.write_and_wake(step)

    async def delete_schedule(self, org_id: str, key: str, *, expected: int | None = None, force: bool = False) -> None:
        """Delete a schedule; its slots and runs remain, running jobs finish. Raises Conflict if it is managed
        elsewhere; `force` deletes a schedule of a program, until the program declares it again."""
        now = self.clock.now()

        def step(tx: Tx) -> Schedule:
            due = schedules.lock(tx, org_id, key)
            if not self.deletable(due.schedule, force):
                raise Conflict(f"schedule '{due.schedule.name}' is managed by {due.schedule.managed_by}")
            return self.delete_locked(tx, due, now, expected)

        await self.write_and_wake(step)

    async def pause_schedule(self, org_id: str, key: str, *, reason: str = "", until: object = None) -> Schedule:
        now = self.clock.now()
        end = self.future(until, "until", now)
        text = parse.text(reason, "reason", 1000)
        return await self.write_and_wake(lambda tx: pauses.pause(tx, schedules.lock(tx, org_id, key), text, end, now))

    async def resume_schedule(
        self,
        org_id: str,
        key: str,
        *,
        gap: object = "skip",
        limit: int | None = None,
        spread_hours: float | None = None,
    ) -> Schedule:
        """End a pause; `gap` decides about the slots that passed in it: see `pauses.resume`."""
        now, choice = self.clock.now(), catch_up_choice(gap, limit, spread_hours)
        return await self.write_and_wake(
            lambda tx: self.resume_locked(tx, schedules.lock(tx, org_id, key), choice, now)
        )

    def resume_locked(self, tx: Tx, due: DueSchedule, choice: CatchUpChoice, now: datetime) -> Schedule:
        by = None if self.act is None else self.act.user_id
        return pauses.resume(tx, due, choice, now, self.settings.catch_up, by)

    async def skip_next(self, org_id: str, key: str, *, reason: str = "") -> datetime:
        now = self.clock.now()
        text = parse.text(reason, "reason", 1000)
        return await self.write_and_wake(lambda tx: pauses.skip_next(tx, schedules.lock(tx, org_id, key), text, now))

    async def run_now(
        self,
        org_id: str,
        key: str,
        *,
        input: object = None,
        overlap: object = None,
        trace: str | None = None,
        check: ScheduleCheck | None = None,
    ) -> str:
        """Add a job outside the slots; returns its id. `input` replaces that of the schedule."""
        now = self.clock.now()
        schedule = await self.db.read(schedules.get, org_id, key)
        payload = schedule.input if input is None else parse.payload(input, "input")
        if input is not None:
            await self.resolve(replace(schedule, input=payload))
        policy = None if overlap is None else parse_overlap(overlap)

        def step(tx: Tx) -> str:
            due = schedules.lock(tx, org_id, key)
            if check is not None:
                check(replace(due.schedule, input=payload), due.schedule)
            if payload != due.schedule.input and due.schedule.grant_id is not None:
                check_grant(tx, self.runners, replace(due.schedule, input=payload), now)
                check_owner(tx, self.act, org_id, due.schedule.grant_id)
            return firing.run_now(tx, due.schedule, payload, policy or due.schedule.overlap, trace, now)

        return await self.write_and_wake(step)

    async def pause_many(
        self, org_id: str, filters: Mapping[str, object], *, reason: str = "", until: object = None
    ) -> list[Schedule]:
        """Pause all schedules that match; returns them."""
        now = self.clock.now()
        end, text = self.future(until, "until", now), parse.text(reason, "reason", 1000)
        return await self.change_many(org_id, filters, lambda tx, due: pauses.pause(tx, due, text, end, now))

    async def resume_many(self, org_id: str, filters: Mapping[str, object], *, gap: object = "skip") -> list[Schedule]:
        """Resume all schedules that match; returns those that were paused."""
        now, choice = self.clock.now(), catch_up_choice(gap)
        if filters.get("paused") is False:
            return []
        paused = {**filters, "paused": True}
        return await self.change_many(org_id, paused, lambda tx, due: self.resume_locked(tx, due, choice, now))

    async def enable_many(self, org_id: str, filters: Mapping[str, object], *, enabled: bool) -> list[Schedule]:
        """Enable or disable all schedules that match; returns those that changed. Left out are producers of
        workflows, which are paused with their workflow, and schedules that have no slot left."""
        now = self.clock.now()
        if filters.get("enabled") is enabled:
            return []

        def change(tx: Tx, due: DueSchedule) -> Schedule | None:
            if due.schedule.enabled is enabled or traits_of(due.schedule.kind).declares_schedules:
                return None
            try:
                new = schedule_form.parse_patch(due.schedule, {"enabled": enabled}, defaults=self.defaults, now=now)
            except Invalid:
                return None
            return schedules.replace_schedule(tx, due, new, now)

        return await self.change_many(org_id, {**filters, "enabled": not enabled}, change)

    async def delete_many(self, org_id: str, filters: Mapping[str, object]) -> list[Schedule]:
        """Delete all schedules that match and are not managed elsewhere; returns them."""
        now = self.clock.now()

        def delete(tx: Tx, due: DueSchedule) -> Schedule | None:
            if not self.deletable(due.schedule, force=False):
                return None
            return self.delete_locked(tx, due, now)

        return await self.change_many(org_id, filters, delete)

    async def change_many(
        self, org_id: str, filters: Mapping[str, object], change: Callable[[Tx, DueSchedule], Schedule | None]
    ) -> list[Schedule]:
        """Change the schedules that match, in batches, so that other writers are not blocked. Returns those that
        changed, without those deleted in between and those for which `change` returns None."""
        ids = await self.db.read(schedules.ids_matching, org_id, **filters)

        def step(tx: Tx, batch: Sequence[str]) -> list[Schedule]:
            locked = [
                schedules.lock(tx, org_id, schedule_id)
                for schedule_id in batch
                if schedules.exists(tx, org_id, schedule_id)
            ]
            if filters.get("paused"):
                locked = [due for due in locked if due.schedule.paused_at is not None]
            return [schedule for due in locked if (schedule := change(tx, due)) is not None]

        changed: list[Schedule] = []
        for start in range(0, len(ids), CHANGE_BATCH_ROWS):
            batch = ids[start : start + CHANGE_BATCH_ROWS]
            changed += await self.write_and_wake(partial(step, batch=batch))
        return changed

    def deletable(self, schedule: Schedule, force: bool) -> bool:
        """Return whether a user may delete a schedule: not one that a workflow, trigger or program manages."""
        gone = schedule.paused_at is not None and schedule.pause_reason == UNDECLARED_REASON
        by_program = schedule.source.startswith("code:") and not traits_of(schedule.kind).declares_schedules
        return schedule.managed_by is None or (by_program and (gone or force))

    def delete_locked(self, tx: Tx, due: DueSchedule, now: datetime, expected: int | None = None) -> Schedule:
        """Delete a locked schedule, and what its kind deletes with it."""
        deleted = schedules.replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now, expected)
        runner = self.runners.get(deleted.kind)
        if isinstance(runner, DeletesWithSchedule):
            runner.schedule_deleted(tx, deleted)
        return deleted

    async def freeze(self, org_id: str, *, reason: str = "", until: object = None) -> None:
        """Freeze an org: its slots pass without jobs until `until` or an unfreeze."""
        now = self.clock.now()
        text = parse.text(reason, "reason", 1000)
        await self.db.tx(pauses.freeze, org_id, text, self.future(until, "until", now), now)

    async def unfreeze(self, org_id: str) -> None:
        await self.write_and_wake(lambda tx: pauses.unfreeze(tx, org_id, self.clock.now()))


def check_managed_fields(old: Schedule, new: Schedule) -> None:
    """Raise Conflict if an edit changes fields that the manager of a schedule sets."""
    if old.managed_by is None:
        return
    own = {"grant_id"} if traits_of(new.kind).declares_schedules else {"grant_id", "enabled"}
    before, after = schedule_form.flat(old), schedule_form.flat(new)
    changed = sorted(field for field, value in after.items() if before[field] != value and field not in own)
    if changed:
        raise Conflict(f"schedule '{old.name}' is managed by {old.managed_by} (refused: {', '.join(changed)})")


def fields_of(body: Mapping[str, object] | ScheduleBody) -> Mapping[str, object]:
    """Return what a body says about its calendar, before it is validated."""
    return {"calendar": body.calendar} if isinstance(body, ScheduleBody) else body


def at_item(error: Invalid, position: int) -> Invalid:
    return Invalid(f"items[{position}].{error.field}", error.value, error.right)
