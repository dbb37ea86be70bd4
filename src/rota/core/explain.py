"""Explains in sentences why a run or a slot has its status. Pure: the caller passes the rows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rota.core.catch_up import AWAITING_APPROVAL, CATCH_UP_TRIGGER, NOT_APPROVED
from rota.core.incidents import parked_page
from rota.core.states import State, Status, Verdict, shown_status
from rota.core.steps import NO_DUE_TIME

Row = Mapping[str, Any]

REASON_TEXTS = {  # reasons of statuses and verdicts, to complete a sentence
    "logic": "the task raised an error",
    "internal": "Rota failed internally",
    "timeout": "it ran longer than its timeout, or did not call its heartbeat in time",
    "dependency": "the jobs that it was to follow did not end as its condition says",
    "throttled": "another job of its task and key had been enqueued shortly before",
    "transient": "the cause is transient",
    "quarantined": "its worker died too often while running it",
    "approval": "a person must act first",
    "reconciliation": "it is unknown whether its effect happened; a person must check",
    "overlap": "another job of the schedule had not finished, and its overlap policy is skip",
    "window": "its execution window had closed",
    "disabled": "the schedule was disabled or deleted before it started",
    "paused": "the schedule was paused",
    "frozen": "the org was frozen",
    "freeze": "a freeze window covered it",
    "deadline": "it could not start within its start deadline",
    "operator": "a user asked for it",
    "superseded": "the schedule was edited before it started",
    "replaced": "a newer job took its place, as its overlap policy says",
    "busy": "where it runs was busy",
    "budget": "the budget was used up",
    "billing_account_closed": "the account that pays for it is closed",
    "insufficient_credits": "the account that pays for it had too few credits",
    "grant_not_found": "its grant does not exist",
    "grant_revoked": "its grant was revoked",
    "grant_expired": "its grant had expired",
    "grant_scope": "its grant does not allow it",
    "aborted": "its graph was aborted",
    "scheduler_failed": "the scheduler could not fire it",
    "upstream": "not all of its upstreams had a new success",
    "shutdown": "its worker was stopped; it was handed back",
    "limit": "the catch-up limit was reached",
    AWAITING_APPROVAL: "their catch-up exceeds a limit and waits for an approval",
    NOT_APPROVED: "the decision about their catch-up left them out",
    "unroutable": "no live worker can run it",
    "version": "no live worker has the version of its code that recorded its steps",
    "no_shell": "its org may not run stored commands",
}
VERDICTS = {
    Verdict.SKIPPED: "were skipped",
    Verdict.MISSED: "were missed: no worker was up when they were due",
    Verdict.COALESCED: "were coalesced",
}


def explain_run(
    runs: Sequence[Row], job: Row | None, schedule: Row | None, waits: Sequence[str], who: str = "A user"
) -> list[str]:
    """Return sentences about a job: its origin, each attempt, and what it waits for. `waits` come from the caller."""
    first: Row = runs[0] if runs else job or {}
    sentences = [origin(first, schedule, who)]
    if schedule is not None:
        sentences.append(policy(schedule))
    sentences += [attempt(run) for run in runs]
    if job is not None:
        sentences += [state_of(job), *waits]
        if job["cancel_requested_at"] is not None:
            sentences.append(
                f"It was asked to stop at {at(job['cancel_requested_at'])}{because(job['cancel_reason'])}."
            )
    return sentences


def explain_slot(slot: Row, schedule: Row) -> list[str]:
    """Return sentences about slots that did not fire or were coalesced."""
    first, last = slot["slot"], slot["last_slot"] or slot["slot"]
    count = slot["count"]
    which = f"The slot {at(first)}" if first == last else f"{count or 'The'} slots from {at(first)} to {at(last)}"
    verdict = VERDICTS[Verdict(slot["verdict"])]
    verdict = verdict if first != last else verdict.replace("were ", "was ", 1).replace("they were", "it was")
    into = f" into {at(slot['into_slot'])}, whose job did the work" if slot["into_slot"] else ""
    note = f" ({slot['note']})" if slot["note"] else ""
    return [f"{which} of schedule {schedule['name']} {verdict}{into}{because(slot['reason'])}{note}.", policy(schedule)]


def origin(row: Row, schedule: Row | None, who: str) -> str:
    """Return who or what requested a job, and when."""
    of = f"schedule {schedule['name']}" if schedule else f"{row['kind']} {row['target_name'] or row['target']}"
    queued = f"queued at {at(row['queued_at'])}"
    slot: datetime | None = row["slot"]
    match row["trigger"]:
        case "manual":
            return f"{who} asked for {of} to run at once; it was {queued}."
        case "retry":
            return f"{who} asked for another attempt after run {row['retry_of']} of {of}; it was {queued}."
        case "backfill":
            return f"A backfill asked for the slot {at(slot)} of {of}; it was {queued}."
        case trigger if trigger == CATCH_UP_TRIGGER:
            return f"A catch-up asked for the slot {at(slot)} of {of}; it was {queued}."
        case trigger if slot is not None:
            late = (row["queued_at"] - slot).total_seconds()  # slots of the next second are queued ahead
            side = f"{span(abs(late))} {'after' if late >= 0 else 'before'} the slot"
            return f"The slot {at(slot)} of {of} came due ({trigger}); its job was {queued}, {side}."
        case trigger:
            return f"{trigger} asked for {of}; it was {queued}."


def policy(schedule: Row) -> str:
    """Return the current policies of a schedule."""
    retry = schedule["retry"] or {}
    count = retry.get("max_retries", 0)
    tries = f"{count} {'retry' if count == 1 else 'retries'}" if retry else "the default retries"
    timing = f"{schedule['words']}; " if schedule["words"] else ""
    policies = f"misfire {schedule['misfire']}, overlap {schedule['overlap']}, {tries}"
    return f"The schedule is now: {timing}{policies}."


def attempt(run: Row) -> str:
    """Return how an attempt ended."""
    error = run["error"] or {}
    if run["started_at"] is None:
        reason = error["code"] if error.get("code") in REASON_TEXTS else run["reason"]
        return f"Attempt {run['attempt']} never started: {run['status']}{because(reason)}, at {at(run['finished_at'])}."
    took = span((run["finished_at"] - run["started_at"]).total_seconds())
    if run["status"] == Status.LOST:
        return lost_attempt(run, took)
    ended = f"{shown_status(run)}{because(run['reason'], 'though' if run['status'] == Status.SUCCESS else 'because')}"
    message = f" Its error: {error_text(error)}." if error else ""
    worker = f" on worker {run['worker']}" if run["worker"] else ""
    return (
        f"Attempt {run['attempt']} started at {at(run['started_at'])}{worker} and ended after {took}: {ended}.{message}"
    )


def lost_attempt(run: Row, took: str) -> str:
    """Return how an attempt ended whose worker had lost the lease; its reason is the status that it ended as."""
    how = f" as {run['reason']}" if run["reason"] else ""
    began = f"Attempt {run['attempt']} started at {at(run['started_at'])} on worker {run['worker']}"
    error = run["error"] or {}
    message = f" Its error: {error_text(error)}." if error else ""
    late = "but its worker had lost the lease: the result does not count (lost)."
    return f"{began} and ended after {took}{how}, {late}{message}"


def state_of(job: Row) -> str:
    """Return the state of a job in the queue."""
    match State(job["state"]):
        case State.LATER if job["run_at"] == NO_DUE_TIME:
            return "It waits until other jobs have ended."
        case State.LATER:
            return f"It waits until it is due, {at(job['run_at'])}."
        case State.BLOCKED:
            return "It waits for its turn: another job of its serial key comes first."
        case State.READY:
            return f"It is ready since {at(job['run_at'])} and waits for a worker, in queue {job['queue']}."
        case State.RETRY if job["place_wanted"] is not None:
            return f"It waits for a place: at most {job['place_limit']} jobs of its key run at once."
        case State.RETRY if job["reserved_at"] is not None:
            return f"It waits for the rate of its task or queue: its start is reserved for {at(job['reserved_at'])}."
        case State.RETRY:
            return f"It backs off until {at(job['run_at'])}; then attempt {job['attempt'] + 1} follows."
        case State.WAITING:
            return waits_for(job["waiting"])
        case State.PARKED:
            reason = job["parked_reason"]
            return f"It is parked{because(reason)}; see {parked_page(reason)}."
        case State.RUNNING if job["run_id"] is None:
            return f"Worker {job['lease_owner']} has claimed it and is about to start it."
        case State.RUNNING:
            return f"Attempt {job['attempt']} runs since {at(job['started_at'])} on worker {job['lease_owner']}."


def waits_for(waiting: Row) -> str:
    """Return what a suspended run waits for."""
    due = None if waiting.get("until") is None else datetime.fromisoformat(waiting["until"])
    step = f"Its run {waiting['run_id']} is suspended at step {waiting['step']!r}"
    limit = f", until {at(due)} at the latest" if due else ""
    key = f" with key {waiting['key']!r}" if waiting.get("key") else ""
    match waiting["for"]:
        case "sleep":
            return f"{step}: it sleeps until {at(due)}."
        case "retry":
            return f"{step}: the next try of that step is due at {at(due)}."
        case "signal":
            return f"{step}: it waits for a signal {waiting['topic']!r}{key}{limit}."
        case "approval":
            return f"{step}: it waits for the approval of {waiting['topic']!r}{limit}."
        case "child":
            return f"{step}: it waits for a child job{limit}."
        case other:
            return f"{step}: it waits ({other}){limit}."


def because(reason: str | None, word: str = "because") -> str:
    if reason is None:
        return ""
    return f", {word} {REASON_TEXTS[reason]} ({reason})" if reason in REASON_TEXTS else f", by {reason}"


def error_text(error: Row) -> str:
    """Return the message of an error, preceded by its type unless the message begins with it."""
    error_type, message = str(error.get("type") or ""), str(error.get("message") or "")
    return message if message.startswith(error_type) else f"{error_type}: {message}"


def at(timestamp: datetime | None) -> str:
    return "?" if timestamp is None else timestamp.isoformat(timespec="seconds")


def span(seconds: float) -> str:
    if abs(seconds) < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.0f} h"
