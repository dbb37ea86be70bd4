"""Enqueues jobs: plain ones, those whose target has rules (debounce, throttle), and those that run after others."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypedDict

from sqlalchemy import select, update

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.flow import Debounce, EnqueueRules, Throttle, microseconds
from rota.core.ids import new_id
from rota.core.model import AttemptResult, NewJob, serial_key_of_kind
from rota.core.order import When
from rota.core.policy import Terms, choice
from rota.core.states import State, Status
from rota.core.steps import NO_DUE_TIME
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import jobs
from rota.engine import dependencies, flow_statements, runs
from rota.engine.jobs import enqueue, enqueue_keyless, leased_job

THROTTLED = "throttled"
AFTER_JOBS_MAX = 10_000
NO_RULES = EnqueueRules()

c = jobs.c


class EnqueueOptions(TypedDict, total=False):
    """Options of `Engine.enqueue` for callers that pass them on."""

    run_at: datetime | None
    queue_name: str | None
    priority: int | None
    serial_key: str | None
    job_key: str | None
    key_mode: str
    terms: Terms | None
    trigger: str
    after: Sequence[str]
    when: str


def check_rules(rules: EnqueueRules | None, kind: str, target: str, options: EnqueueOptions) -> EnqueueRules:
    """Return the rules of a target for a job. Raises Invalid for options that its debounce decides about."""
    for field, value in (("run_at", options.get("run_at")), ("job_key", options.get("job_key"))):
        if rules is not None and rules.debounce is not None and value is not None:
            raise Invalid(field, str(value), f"cannot be set: the debounce of {kind} {target!r} decides")
    return rules or NO_RULES


def new_jobs(
    org_id: str,
    kind: str,
    target: str,
    payloads: Sequence[object],
    routes: Sequence[str],
    rules: Sequence[EnqueueRules],
    now: datetime,
    trace: str | None,
    options: EnqueueOptions,
) -> list[NewJob]:
    """Return a job per payload; queue and priority are by default those of its rules. Raises Invalid for a payload that
    is not JSON or too large."""
    priority = options.get("priority")
    return [
        NewJob(
            org_id=org_id, kind=kind, target=target, payload=parse.payload(payload, "input"), route=route, trace=trace,
            run_at=options.get("run_at") or now, trigger=options.get("trigger", "manual"),
            queue=options.get("queue_name") or rule.queue or "default",
            priority=priority if priority is not None else rule.priority or 0,
            serial_key=options.get("serial_key") or serial_key_of_kind(kind, org_id, target),
            job_key=options.get("job_key"), terms=options.get("terms") or Terms(),
        )
        for payload, route, rule in zip(payloads, routes, rules, strict=True)
    ]  # fmt: skip


def enqueue_step(
    new: Sequence[NewJob], rules: Sequence[EnqueueRules], now: datetime, options: EnqueueOptions
) -> Callable[[Tx], list[str]]:
    """Return the step that enqueues jobs and returns their ids; a single statement if nothing is to be locked or looked
    up. Raises Invalid for options that cannot be combined."""
    key_mode = options.get("key_mode", "reject")
    if options.get("after"):
        after, condition = checked_after(options, rules), choice(When, options.get("when", When.SUCCESS), "when")
        return lambda tx: enqueue_after(tx, new, after, condition, now, key_mode)
    if any(rule.debounce or rule.throttle for rule in rules):
        return lambda tx: enqueue_by_rules(tx, new, rules, now, key_mode)
    if new and not any(job.serial_key or job.job_key for job in new):
        return enqueue_keyless(new, now)
    return lambda tx: enqueue(tx, new, now, key_mode)


def checked_after(options: EnqueueOptions, rules: Sequence[EnqueueRules]) -> list[str]:
    """Return the ids of jobs to wait for. Raises Invalid if they cannot be combined with the rest of the request."""
    after, run_at = options["after"], options.get("run_at")
    if len(after) > AFTER_JOBS_MAX:
        raise Invalid("after", len(after), f"names too many jobs; at most {AFTER_JOBS_MAX} are allowed")
    if run_at is not None:
        raise Invalid("run_at", run_at.isoformat(), "cannot be combined with `after`: the job is due when these ended")
    if any(rule.debounce or rule.throttle for rule in rules):
        raise Invalid("after", list(after)[:3], "cannot be used for a task with `debounce` or `throttle`")
    return [parse.ulid(job_id, f"after[{position}]") for position, job_id in enumerate(after)]


def enqueue_by_rules(
    tx: Tx, new: Sequence[NewJob], rules: Sequence[EnqueueRules], now: datetime, key_mode: str = "reject"
) -> list[str]:
    """Enqueue jobs, each by its rules; returns their ids. A debounced job has the id of the job that it joined, a
    throttled one its own id and one run, `skipped: throttled`."""
    lock_keys(tx, {rule.debounce.key for rule in rules if rule.debounce is not None})
    ids: list[str] = []
    for job, rule in zip(new, rules, strict=True):
        if rule.throttle is not None and not passes(tx, rule.throttle, now):
            skip(tx, job, now, THROTTLED)
            ids.append(job.id)
        elif rule.debounce is not None:
            ids.append(join(tx, job, rule.debounce, now) or debounced(tx, job, rule.debounce, now))
        else:
            ids += enqueue(tx, [job], now, key_mode)
    return ids


def enqueue_after(
    tx: Tx, new: Sequence[NewJob], after: Sequence[str], when: When, now: datetime, key_mode: str = "reject"
) -> list[str]:
    """Enqueue jobs that run after others have ended; returns their ids. Those whose condition cannot hold any more are
    recorded as skipped. Raises Invalid for an id that is no job of the org: so no cycle can arise."""
    if not new:
        return []
    statuses = dependencies.follow(tx, new[0].org_id, after)
    runs_now = dependencies.decide(when, statuses.values())
    if runs_now is False:
        for job in new:
            skip(tx, job, now, dependencies.DEPENDENCY)
        dependencies.insert(tx, [job.id for job in new], statuses, when)
        return [job.id for job in new]
    if runs_now is None:
        for job in new:
            job.run_at = NO_DUE_TIME
    ids = enqueue(tx, new, now, key_mode)
    dependencies.insert(tx, [job_id for job_id in ids if job_id in {job.id for job in new}], statuses, when)
    return ids


def passes(tx: Tx, throttle: Throttle, now: datetime) -> bool:
    """Return whether no job of the key was enqueued within the period; if so, this one is."""
    until_us = microseconds(now + throttle.period)
    return bool(flow_statements.PASS_THROTTLE.run(tx, key=throttle.key, until_us=until_us, now_us=microseconds(now)))


def skip(tx: Tx, job: NewJob, now: datetime, reason: str) -> None:
    """Record a job that is not enqueued."""
    never_run = leased_job(job, now, 0)
    runs.append(tx, [AttemptResult(never_run, Status.SKIPPED, reason, now, new_id(), 1)], None)


def join(tx: Tx, job: NewJob, debounce: Debounce, now: datetime) -> str | None:
    """Give the job of a key that has not been claimed the newest parameters, and postpone it; returns its id, None if
    there is none. A job that is due already is not postponed. The caller holds the lock of the key."""
    waiting = select(c.id, c.state, c.queued_at).where(c.solo_key == debounce.key).with_for_update()
    row = tx.execute(waiting).one_or_none()
    if row is None:
        return None
    values: dict[str, object] = {"payload": job.payload, "route": job.route, "trace": job.trace}
    if row.state == State.LATER:
        values["run_at"] = min(now + debounce.period, row.queued_at + debounce.longest)
    tx.execute(update(jobs).where(c.id == row.id).values(values))
    return str(row.id)


def debounced(tx: Tx, job: NewJob, debounce: Debounce, now: datetime) -> str:
    """Enqueue the first job of a key, to run after the period."""
    job.run_at, job.solo_key = now + debounce.period, debounce.key
    return enqueue(tx, [job], now)[0]
