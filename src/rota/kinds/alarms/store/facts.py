"""What the rules measure. Reads only what changed since the last evaluation, is waiting, running or overdue now; the
rule `not_succeeded_since` reads a row per schedule that it watches, and is evaluated less often."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select

from rota.core.alarms import RUN_EVENTS, Measurement, Rule
from rota.core.catch_up import CATCH_UP_TRIGGER
from rota.core.states import State
from rota.core.timing.describe import short_span
from rota.db.dialect import Tx
from rota.db.tables import clocks, grants, hosts, jobs, runs, schedule_stats, schedule_tags, schedules, slots
from rota.engine import workers as worker_rows
from rota.engine.schedules import LIVING
from rota.kinds.alarms.store.changes import KIND

OVERLAP = timedelta(seconds=5)  # transactions do not commit in the order of their timestamps
CHANGED_ROWS = 5000  # runs that one evaluation reads; the next one goes on
USUAL_RUNS = 20  # successes whose median duration is usual
USUAL_RUNS_MIN = 5
SLOTS_BACK = timedelta(days=31)  # in which slots may be recorded as missed
SKIPS_BACK = timedelta(minutes=5)
BY_PEOPLE = ("paused", "frozen", "operator", "disabled")  # reasons of skipped slots that are no surprise
UNTIMED_TRIGGERS = ("backfill", "retry", "manual", CATCH_UP_TRIGGER)
PAUSE_REASON = "failures in a row"

s, k, r, j, st, sl, g, h = (*(schedules.c, clocks.c, runs.c, jobs.c, schedule_stats.c, slots.c, grants.c, hosts.c),)
FAILED = ("failed", "crashed")
LATER = runs.alias()
# the last attempt of a job that has ended, or waits for a person
IS_LAST = ~or_(
    select(LATER.c.id).where(LATER.c.job_id == r.job_id, LATER.c.attempt > r.attempt).exists(),
    select(j.id).where(j.id == r.job_id, j.state != State.PARKED).exists(),
)
WAITING = [State.READY, State.BLOCKED, State.PARKED]


@dataclass(frozen=True, slots=True)
class Span:
    """What an evaluation covers: runs recorded since `since`, slots after `created_at`."""

    org_id: str
    scope: tuple[str, str] | None
    since: datetime
    created_at: datetime
    now: datetime
    grace: timedelta
    kinds: Collection[str]


def measure(tx: Tx, rule: Rule, span: Span) -> tuple[list[Measurement], datetime]:
    """Return what a rule measures now, and up to when runs are read."""
    changed, until = changed_runs(tx, span) if rule.type is not None and not rule.type.whole else ([], span.now)
    match rule.name:
        case "late":
            measured = late(tx, rule, span, changed)
        case "overran":
            measured = overran(tx, rule, span, changed)
        case "too_short":
            measured = too_short(tx, rule, changed)
        case "failed_in_a_row":
            measured = failed_in_a_row(tx, rule, changed)
        case "missed":
            measured = missed(tx, span, changed)
        case "skipped":
            measured = skipped(tx, rule, span, changed)
        case "not_succeeded_since":
            measured = not_succeeded_since(tx, rule, span)
        case "paused":
            measured = paused(tx, span)
        case "queue_age":
            measured = queue_age(tx, rule, span)
        case "grant_expiring":
            measured = grant_expiring(tx, rule, span)
        case "budget_low":
            measured = budget_low(tx, span)
        case "no_worker":
            measured = no_worker(tx, rule, span)
        case "host_offline":
            measured = host_offline(tx, rule, span)
        case _:
            raise AssertionError(rule.name)
    return list(measured), until


def watched(span: Span) -> ColumnElement[bool]:
    """Match the schedules that an alarm watches."""
    of_org = and_(s.org_id == span.org_id, LIVING)
    match span.scope:
        case ("schedule", name):
            return and_(of_org, or_(s.name == name, s.id == name))
        case ("tag", name):
            tagged = select(schedule_tags.c.schedule_id)
            return and_(
                of_org, s.id.in_(tagged.where(schedule_tags.c.org_id == span.org_id, schedule_tags.c.tag == name))
            )
        case (kind, target):
            return and_(of_org, s.kind == kind, s.target == target)
        case _:
            return of_org


def unwatched(tx: Tx, span: Span, subjects: Iterable[str]) -> list[str]:
    """Return those of these subjects that are schedules which are deleted, disabled, paused or no longer watched. A
    schedule that was paused after failures in a row is still watched: nothing is right again."""
    ids = {subject.removeprefix("schedule:") for subject in subjects if subject.startswith("schedule:")}
    if not ids:
        return []
    in_force = or_(s.paused_at.is_(None), s.pause_reason.like(f"%{PAUSE_REASON}"))
    stmt = select(s.id).where(s.id.in_(sorted(ids)), watched(span), s.enabled, in_force)
    return [f"schedule:{schedule_id}" for schedule_id in ids - set(tx.execute(stmt).scalars())]


def changed_runs(tx: Tx, span: Span) -> tuple[list[Any], datetime]:
    """Return the runs of watched schedules that were recorded since the last evaluation, oldest first, and up to when
    they are read. `is_last` says that the job has ended with it."""
    columns = (r.id, r.job_id, r.schedule_id, r.kind, r.target, r.slot, r.trigger, r.attempt, r.status, r.reason)
    stmt = (
        select(*columns, r.error, r.started_at, r.finished_at, r.recorded_at, s.name, IS_LAST.label("is_last"))
        .select_from(runs.join(schedules, s.id == r.schedule_id))
        .where(r.org_id == span.org_id, r.recorded_at > span.since - OVERLAP, r.kind != KIND, watched(span))
        .order_by(r.recorded_at, r.id)
        .limit(CHANGED_ROWS)
    )  # fmt: skip
    rows = list(tx.execute(stmt))
    return rows, rows[-1].recorded_at if len(rows) == CHANGED_ROWS else span.now


def ended_runs(tx: Tx, rule: Rule, span: Span) -> tuple[list[Any], datetime]:
    """Return the runs that a run webhook reports, also those without a schedule: last attempts that were recorded
    before OVERLAP ago, so that each is reported once."""
    until = span.now - OVERLAP
    columns = (r.id, r.job_id, r.schedule_id, r.kind, r.target, r.target_name, r.slot, r.trigger, r.attempt, r.status)
    stmt = (
        select(*columns, r.reason, r.error, r.started_at, r.finished_at, r.recorded_at, s.name)
        .select_from(runs.outerjoin(schedules, s.id == r.schedule_id))
        .where(r.org_id == span.org_id, r.recorded_at > span.since, r.recorded_at <= until, r.kind != KIND)
        .where(r.status.in_(RUN_EVENTS[rule.name]), IS_LAST)
        .order_by(r.recorded_at, r.id)
        .limit(CHANGED_ROWS)
    )  # fmt: skip
    if span.scope is not None:
        stmt = stmt.where(watched(span))
    rows = list(tx.execute(stmt))
    return rows, rows[-1].recorded_at if len(rows) == CHANGED_ROWS else until


def of_run(row: Any, value: float, text: str) -> Measurement:
    return Measurement(f"schedule:{row.schedule_id}", row.name, value, text, row.recorded_at)


def late(tx: Tx, rule: Rule, span: Span, changed: Iterable[Any]) -> Iterator[Measurement]:
    for row in overdue(tx, span, rule.span):
        waited = span.now - row.next_run_at
        text = f"has not fired its slot {row.next_slot:%F %T} UTC, {short_span(waited)} ago"
        yield Measurement(f"schedule:{row.id}", row.name, waited.total_seconds(), text, span.now)
    stmt = select(j.schedule_id, s.name, j.run_at).join(schedules, s.id == j.schedule_id)
    waiting = (j.state.in_(WAITING), j.attempt == 0, j.run_at < span.now - rule.span, j.slot.is_not(None))
    for row in tx.execute(stmt.where(j.schedule_id.is_not(None), *waiting, watched(span))):
        waited = span.now - row.run_at
        text = f"has had a job in the queue for {short_span(waited)} that has not started"
        yield Measurement(f"schedule:{row.schedule_id}", row.name, waited.total_seconds(), text, span.now)
    for row in changed:
        if row.slot is not None and row.started_at is not None and row.attempt == 1:
            if row.trigger in UNTIMED_TRIGGERS:
                continue
            lateness = row.started_at - row.slot
            text = f"started its slot {row.slot:%F %T} UTC {short_span(lateness)} late"
            yield of_run(row, lateness.total_seconds(), text)


def overdue(tx: Tx, span: Span, longer_than: timedelta) -> list[Any]:
    """Return watched schedules whose slot should have fired this long ago: no live scheduler has seen it."""
    stmt = (
        select(s.id, s.name, k.next_slot, k.next_run_at)
        .select_from(clocks.join(schedules, s.id == k.schedule_id))
        .where(k.kind.in_(sorted(span.kinds)), k.next_run_at.is_not(None), k.next_run_at < span.now - longer_than)
        .where(watched(span), s.enabled)
        .order_by(k.next_run_at)
        .limit(1000)
    )
    return list(tx.execute(stmt))


def overran(tx: Tx, rule: Rule, span: Span, changed: Iterable[Any]) -> Iterator[Measurement]:
    stmt = select(j.schedule_id, s.name, j.started_at).join(schedules, s.id == j.schedule_id)
    running = (j.schedule_id.is_not(None), j.state == State.RUNNING, j.started_at < span.now - rule.span)
    for row in tx.execute(stmt.where(*running, watched(span))):
        took = span.now - row.started_at
        text = f"has been running for {short_span(took)}"
        yield Measurement(f"schedule:{row.schedule_id}", row.name, took.total_seconds(), text, span.now)
    for row in changed:
        if row.started_at is not None:
            took = row.finished_at - row.started_at
            yield of_run(row, took.total_seconds(), f"took {short_span(took)}")


def too_short(tx: Tx, rule: Rule, changed: Iterable[Any]) -> Iterator[Measurement]:
    usual: dict[str, float | None] = {}
    for row in changed:
        if row.status != "success" or row.started_at is None:
            continue
        took = (row.finished_at - row.started_at).total_seconds()
        if not rule.is_percent:
            yield of_run(row, took, f"succeeded after {took:.1f} s")
            continue
        if row.schedule_id not in usual:
            usual[row.schedule_id] = usual_seconds(tx, row.schedule_id, row.recorded_at)
        normal = usual[row.schedule_id]
        if normal:
            yield of_run(row, 100 * took / normal, f"succeeded after {took:.1f} s; usual are {normal:.1f} s")


def usual_seconds(tx: Tx, schedule_id: str, before: datetime) -> float | None:
    """Return the median duration of a schedule's last successes before a time; None if there were too few."""
    stmt = select(r.started_at, r.finished_at).where(r.schedule_id == schedule_id, r.recorded_at < before)
    stmt = stmt.where(r.status == "success", r.started_at.is_not(None)).order_by(r.recorded_at.desc()).limit(USUAL_RUNS)
    durations = [(row.finished_at - row.started_at).total_seconds() for row in tx.execute(stmt)]
    return median(durations) if len(durations) >= USUAL_RUNS_MIN else None


def failed_in_a_row(tx: Tx, rule: Rule, changed: Iterable[Any]) -> Iterator[Measurement]:
    newest = {row.schedule_id: row for row in changed if row.is_last and row.status in (*FAILED, "success")}
    for row in newest.values():
        count = failures_in_a_row(tx, row.schedule_id, int(rule.limit))
        times = f" {count} times in a row" if count > 1 else ""
        text = f"failed{times}{error_words(row.error)}" if count else "succeeded"
        yield of_run(row, count, text)


def failures_in_a_row(tx: Tx, schedule_id: str, most: int) -> int:
    """Return how many of a schedule's newest jobs failed, counted up to `most`."""
    ended = (r.schedule_id == schedule_id, r.status.in_([*FAILED, "success"]), IS_LAST)
    stmt = select(r.status).where(*ended).order_by(r.recorded_at.desc(), r.id.desc()).limit(most)
    count = 0
    for status in tx.execute(stmt).scalars():
        if status == "success":
            break
        count += 1
    return count


def error_words(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return f": {str(message)[:200]}" if message else ""


def missed(tx: Tx, span: Span, changed: Iterable[Any]) -> Iterator[Measurement]:
    for row in overdue(tx, span, max(span.grace, timedelta(seconds=10))):
        text = f"has not fired its slot {row.next_slot:%F %T} UTC: no live scheduler has seen it"
        yield Measurement(f"schedule:{row.id}", row.name, 1, text, span.now)
    stmt = (
        select(sl.schedule_id, s.name, sl.slot, sl.last_slot, sl.count.label("number"), sl.reason)
        .select_from(slots.join(schedules, s.id == sl.schedule_id))
        .where(sl.verdict == "missed", sl.slot > span.now - SLOTS_BACK, sl.last_slot > span.created_at, watched(span))
    )
    for row in tx.execute(stmt):
        words = f"{row.number} slots from " if row.number and row.number > 1 else "the slot "
        text = f"missed {words}{row.slot:%F %T} UTC"
        yield Measurement(f"schedule:{row.schedule_id}", row.name, row.number or 1, text, row.last_slot)
    for row in changed:
        if row.slot is not None and row.status == "success":
            yield of_run(row, 0, "ran")


def skipped(tx: Tx, rule: Rule, span: Span, changed: Iterable[Any]) -> Iterator[Measurement]:
    stmt = (
        select(sl.schedule_id, s.name, sl.slot, sl.last_slot, sl.count.label("number"), sl.reason)
        .select_from(slots.join(schedules, s.id == sl.schedule_id))
        .where(
            sl.slot > span.since - SKIPS_BACK, sl.verdict == "skipped", sl.last_slot > span.created_at, watched(span)
        )
    )
    for row in tx.execute(stmt):
        if row.reason == rule.reason or (rule.reason is None and row.reason not in BY_PEOPLE):
            text = f"skipped the slot {row.slot:%F %T} UTC ({row.reason})"
            yield Measurement(f"schedule:{row.schedule_id}", row.name, row.number or 1, text, row.last_slot)
    for row in changed:
        if row.status == "skipped" and (rule.reason in (None, row.reason)):
            yield of_run(row, 1, f"skipped a job ({row.reason})")
        elif row.status == "success":
            yield of_run(row, 0, "ran")


def not_succeeded_since(tx: Tx, rule: Rule, span: Span) -> Iterator[Measurement]:
    edge = span.now - rule.span
    recently = and_(st.last_run_status == "success", st.last_run_at > edge)
    stmt = (
        select(s.id, s.name, s.created_at)
        .select_from(schedules.outerjoin(schedule_stats, st.schedule_id == s.id))
        .where(watched(span), s.enabled, s.paused_at.is_(None), s.condition != "finished", s.created_at < edge)
        .where(or_(st.schedule_id.is_(None), st.last_run_status.is_(None), ~recently))
        .limit(1000)
    )
    for row in tx.execute(stmt):
        success = select(r.finished_at).where(r.schedule_id == row.id, r.status == "success")
        last = tx.execute(success.order_by(r.recorded_at.desc()).limit(1)).scalar()
        since = span.now - (last or row.created_at)
        text = f"has not succeeded for {short_span(since)}" if last else "has never succeeded"
        yield Measurement(f"schedule:{row.id}", row.name, since.total_seconds(), text)


def paused(tx: Tx, span: Span) -> Iterator[Measurement]:
    stmt = select(s.id, s.name, s.pause_reason).where(watched(span), s.paused_at.is_not(None))
    for row in tx.execute(stmt.where(s.pause_reason.like(f"%{PAUSE_REASON}"))):
        yield Measurement(f"schedule:{row.id}", row.name, 1, f"is paused: {row.pause_reason}")


def failing_schedules(tx: Tx, since: datetime) -> list[tuple[str, str, int]]:
    """Return (org, id, failures) of schedules that failed since a time and are to be paused after so many failures. A
    failure before the last change of the schedule does not count: else it would be paused again after its resume."""
    failed = select(r.id).where(r.schedule_id == s.id, r.recorded_at > since - OVERLAP, r.status.in_(FAILED))
    stmt = (
        select(s.org_id, s.id, s.pause_after_failures)
        .where(s.pause_after_failures.is_not(None), LIVING, s.paused_at.is_(None), s.enabled)
        .where(failed.where(r.recorded_at > s.updated_at).exists())
        .limit(500)
    )
    rows = [(row.org_id, row.id, row.pause_after_failures) for row in tx.execute(stmt)]
    return [row for row in rows if failures_in_a_row(tx, row[1], row[2]) >= row[2]]


def queue_age(tx: Tx, rule: Rule, span: Span) -> Iterator[Measurement]:
    oldest = func.min(j.run_at, type_=j.run_at.type)
    stmt = select(j.queue, oldest.label("oldest")).where(
        j.org_id == span.org_id, j.state == State.READY, j.kind != KIND
    )
    if span.scope is not None:
        stmt = stmt.where(j.queue == span.scope[1])
    for row in tx.execute(stmt.group_by(j.queue).having(oldest < span.now - rule.span)):
        age = span.now - row.oldest
        text = f"has a job that has been ready for {short_span(age)}"
        yield Measurement(f"queue:{row.queue}", f"queue {row.queue}", age.total_seconds(), text)


def grant_expiring(tx: Tx, rule: Rule, span: Span) -> Iterator[Measurement]:
    stmt = select(g.id, g.expires_at).where(g.org_id == span.org_id, g.revoked_at.is_(None))
    for row in tx.execute(stmt.where(g.expires_at > span.now, g.expires_at < span.now + rule.span)):
        left = row.expires_at - span.now
        yield Measurement(f"grant:{row.id}", f"grant {row.id}", left.total_seconds(), f"ends in {short_span(left)}")


def budget_low(tx: Tx, span: Span) -> Iterator[Measurement]:
    stmt = select(g.id, g.budget_total, g.budget_per_day, g.spent_total, g.spent_on_day, g.spent_day)
    active = and_(g.org_id == span.org_id, g.revoked_at.is_(None), or_(g.expires_at.is_(None), g.expires_at > span.now))
    for row in tx.execute(stmt.where(active, or_(g.budget_total.is_not(None), g.budget_per_day.is_not(None)))):
        today = row.spent_day is not None and row.spent_day.astimezone(UTC).date() == span.now.date()
        shares = [
            (100 * (limit - spent) / limit if limit else 0.0, words)
            for limit, spent, words in (
                (row.budget_total, row.spent_total, "in all"),
                (row.budget_per_day, row.spent_on_day if today else 0, "for today"),
            )
            if limit is not None
        ]
        left, words = min(shares)
        text = f"has {max(0.0, left):.0f}% of its budget left {words}"
        yield Measurement(f"grant:{row.id}", f"grant {row.id}", left, text)


def no_worker(tx: Tx, rule: Rule, span: Span) -> Iterator[Measurement]:
    if not worker_rows.any_alive(tx, span.now):
        silent = span.now - (worker_rows.last_renewal(tx) or span.created_at)
        text = f"has had no live worker for {short_span(silent)}: nothing fires and nothing runs"
        yield Measurement("workers", "the installation", silent.total_seconds(), text)
    live = worker_rows.live_routes(tx, span.now)
    oldest = func.min(j.run_at, type_=j.run_at.type)
    stmt = select(j.kind, j.route, oldest.label("oldest"), func.count().label("number"))
    stmt = stmt.where(j.state.in_([State.READY, State.PARKED]), j.run_at < span.now - rule.span)
    for row in tx.execute(stmt.group_by(j.kind, j.route)):
        if row.route not in live:
            waited = span.now - row.oldest
            text = f"has {row.number} jobs that no live worker runs; the oldest has waited {short_span(waited)}"
            yield Measurement(f"route:{row.route}", f"{row.kind} ({row.route})", waited.total_seconds(), text)


def host_offline(tx: Tx, rule: Rule, span: Span) -> Iterator[Measurement]:
    stmt = select(h.id, h.name, h.last_heartbeat_at).where(h.org_id == span.org_id)
    if span.scope is not None:
        stmt = stmt.where(or_(h.name == span.scope[1], h.id == span.scope[1]))
    for row in tx.execute(stmt.where(h.last_heartbeat_at < span.now - rule.span)):
        silent = span.now - row.last_heartbeat_at
        text = f"has been silent for {short_span(silent)}"
        yield Measurement(f"host:{row.id}", f"host {row.name}", silent.total_seconds(), text)


def is_well(tx: Tx, now: datetime, kinds: Collection[str], grace: timedelta) -> bool:
    """Return whether a worker is alive and no schedule of the installation is overdue."""
    due = select(k.schedule_id).where(
        k.kind.in_(sorted(kinds)), k.next_run_at.is_not(None), k.next_run_at < now - grace
    )
    return worker_rows.any_alive(tx, now) and tx.execute(due.limit(1)).first() is None
