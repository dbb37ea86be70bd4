"""What an evaluation writes: events that fire or resolve, and deliveries of messages about them, as jobs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update

from rota.core.alarms import (
    ALARM_QUEUE,
    Change,
    EventState,
    Fire,
    LastEvent,
    Resolve,
    Update,
    body_text,
    is_quiet,
    parse_when,
    subject_line,
)
from rota.core.ids import new_id
from rota.core.incidents import PAGES_OF_ALARM_RULES
from rota.core.model import NewJob
from rota.core.policy import Backoff, Retry, Terms
from rota.db.dialect import Tx, is_listed
from rota.db.tables import alarm_events
from rota.engine import jobs
from rota.kinds.alarms.store import rows

KIND = "alarm"
ROUTE, COMMAND_ROUTE = "alarm", "alarm-command"  # commands run on workers only
DELIVERY_RETRY = Retry(8, 10_000, Backoff.EXPONENTIAL, 600_000)
DELIVERY_TIMEOUT = timedelta(seconds=60)
DELIVERY_TERMS = Terms(timeout=DELIVERY_TIMEOUT, retry=DELIVERY_RETRY)
JOB_IDS_KEPT = 20  # of the deliveries of an event
e = alarm_events.c


def last_events(tx: Tx, alarm_id: str, place: str, subjects: Collection[str]) -> dict[str, LastEvent]:
    """Return the open events of an alarm, and the newest event of each of these subjects."""
    columns = (e.subject, e.id, e.state, e.measured_at)
    of_alarm = select(*columns).where(e.alarm_id == alarm_id, e.place == place)
    still_open = list(tx.execute(of_alarm.where(e.state != EventState.RESOLVED)))
    seen = list(tx.execute(of_alarm.where(is_listed(tx, e.subject, list(subjects))).order_by(e.id))) if subjects else []
    return {row.subject: LastEvent(row.id, EventState(row.state), row.measured_at) for row in (*seen, *still_open)}


def apply(tx: Tx, alarm: Any, changes: Sequence[Change], now: datetime) -> int:
    """Write changes of events; returns the number of events that fired."""
    fired = 0
    for change in changes:
        match change:
            case Fire(measured):
                fired += 1
                rows.insert_event(
                    tx,
                    {
                        "id": new_id(), "org_id": alarm.org_id, "alarm_id": alarm.id, "subject": measured.subject,
                        "name": measured.name, "state": EventState.FIRING.value, "text": measured.text,
                        "place": alarm.place, "measured_at": measured.at, "fired_at": now,
                        "notify_at": now + timedelta(seconds=alarm.group_seconds), "notified_at": None, "notified": 0,
                        "acknowledged_at": None, "acknowledged_by": None, "note": None, "resolved_at": None,
                        "job_ids": [],
                    },
                )  # fmt: skip
            case Update(event_id, measured):
                newer = {"text": measured.text, "measured_at": measured.at}
                tx.execute(update(alarm_events).where(e.id == event_id).values(newer))
            case Resolve(event_id, text):
                resolve(tx, event_id, text, now)
    return fired


def resolve(tx: Tx, event_id: str, text: str, now: datetime) -> None:
    """Resolve an event; a message follows if one was sent that it fires."""
    values = {"state": EventState.RESOLVED.value, "resolved_at": now, "text": text}
    tx.execute(update(alarm_events).where(e.id == event_id).values(**values, notify_at=None))
    tx.execute(update(alarm_events).where(e.id == event_id, e.notified > 0).values(notify_at=now))


def notify(tx: Tx, alarm: Any, now: datetime, link: str | None) -> list[str]:
    """Enqueue messages about events that are due, one per state and channel; returns the ids of these jobs. In quiet
    hours they wait."""
    if is_quiet(alarm.quiet, alarm.timezone, now):
        return []
    due = (
        select(alarm_events).where(e.alarm_id == alarm.id, e.notify_at.is_not(None), e.notify_at <= now).order_by(e.id)
    )
    events = list(tx.execute(due))
    channels = rows.channels_by_id(tx, alarm.org_id, alarm.notify) if events else []
    job_ids: list[str] = []
    for state in (EventState.FIRING, EventState.RESOLVED):
        group = [event for event in events if (event.state == EventState.RESOLVED) == (state is EventState.RESOLVED)]
        if group:
            message = message_of(alarm, state, group, now, link)
            job_ids += deliver(tx, alarm.org_id, channels, message, f"alarm:{alarm.name}", now)
    for event in events:
        again = alarm.repeat_seconds is not None and event.state == EventState.FIRING
        values = {
            "notify_at": now + timedelta(seconds=alarm.repeat_seconds) if again else None,
            "notified_at": now,
            "notified": event.notified + 1,
            "job_ids": [*event.job_ids, *job_ids][-JOB_IDS_KEPT:],
        }
        tx.execute(update(alarm_events).where(e.id == event.id).values(values))
    return job_ids


def message_of(alarm: Any, state: EventState, events: Sequence[Any], now: datetime, link: str | None) -> dict[str, Any]:
    """Return the message about events of one alarm."""
    details = [
        {"event_id": event.id, "subject": event.name, "text": event.text, "fired_at": event.fired_at.isoformat()}
        for event in events
    ]
    page = None if state is EventState.RESOLVED else PAGES_OF_ALARM_RULES.get(parse_when(alarm.rule).name)
    return {
        "type": f"alarm.{state}",
        "timestamp": now.isoformat(),
        "title": subject_line(alarm.name, state, [event.name for event in events]),
        "text": body_text([f"{event.name} {event.text}" for event in events], link, page),
        "data": {"alarm": alarm.name, "when": alarm.rule, "state": str(state), "events": details[:200]},
    }


def deliver(
    tx: Tx,
    org_id: str,
    channels: Sequence[Any],
    message: Mapping[str, Any],
    trigger: str,
    now: datetime,
) -> list[str]:
    """Enqueue a job per channel that delivers a message; returns their ids."""
    new = [
        NewJob(
            org_id=org_id, kind=KIND, target=channel.name, payload={"channel_id": channel.id, "message": message},
            run_at=now, trigger=trigger, route=COMMAND_ROUTE if channel.type == "command" else ROUTE,
            queue=ALARM_QUEUE, priority=100, terms=DELIVERY_TERMS,
        )
        for channel in channels
    ]  # fmt: skip
    return jobs.enqueue(tx, new, now) if new else []
