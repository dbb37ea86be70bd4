"""The options of a schedule, for all commands that create or edit one, and the line that shows it afterwards."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Connection
from rota.frame.cli.options import exactly_one, read_input, set_fields, with_fields
from rota.frame.cli.output import local_time, print_data
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import future_option

Input = Annotated[str | None, typer.Option(help="input as JSON, or @file")]


def timing_fields(
    cron: Annotated[str | None, typer.Option(help="cron expression with five fields, such as '0 2 * * *'")] = None,
    every: Annotated[str | None, typer.Option(help="interval, such as 30s, 5m, 2h, 1d")] = None,
    at: Annotated[str | None, future_option(help="run once at: 2h (from now), 13:00, '2026-11-20 09:00', …")] = None,
    rrule: Annotated[
        str | None, typer.Option(help="recurrence rule, such as 'FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0'")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="time zone, such as Europe/Oslo")] = None,
    anchor: Annotated[
        str | None, future_option(help="time from which the intervals of --every count, start of an --rrule")
    ] = None,
    calendar: Annotated[
        str | None, typer.Option(help="calendar of holidays", autocompletion=complete("calendars"))
    ] = None,
    on_holiday: Annotated[
        str | None, typer.Option(help="slots on holidays: skip, next or previous (working day), or run")
    ] = None,
    dst_gap: Annotated[str | None, typer.Option(help="times that the clock skips: run_after or skip")] = None,
    dst_repeat: Annotated[str | None, typer.Option(help="times that happen twice: first or both")] = None,
    window: Annotated[str | None, typer.Option(help="only between these times of day, such as 22:00-06:00")] = None,
    jitter: Annotated[float | None, typer.Option(help="spread start times over this many seconds")] = None,
    starts: Annotated[str | None, future_option(help="first time at which it can fire")] = None,
    ends: Annotated[str | None, future_option(help="last time at which it can fire")] = None,
) -> Answer:
    """Return the fields that say when a schedule is due."""
    start, _, end = window.partition("-") if window is not None else (None, "", None)
    return set_fields(
        cron_expression=cron,
        interval=every,
        run_at=at,
        rrule=rrule,
        calendar=calendar,
        on_holiday=on_holiday,
        dst_gap=dst_gap,
        dst_repeat=dst_repeat,
        timezone=tz,
        anchor=anchor,
        window_start=start,
        window_end=end,
        jitter_seconds=jitter,
        starts_at=starts,
        ends_at=ends,
    )


def retry_fields(
    retries: Annotated[int | None, typer.Option(help="maximum number of retries after a failure")] = None,
    backoff: Annotated[str | None, typer.Option(help="delay between retries: fixed or exponential")] = None,
    backoff_ms: Annotated[int | None, typer.Option(help="delay before the first retry, in milliseconds")] = None,
    max_backoff_ms: Annotated[int | None, typer.Option(help="maximum delay before a retry, in milliseconds")] = None,
    retry_jitter: Annotated[
        float | None, typer.Option(help="from 0 to 1: shorten each delay by up to this fraction, differently per job")
    ] = None,
) -> Answer:
    """Return the field `retry`, if an option of it is set."""
    retry = set_fields(
        max_retries=retries,
        backoff_type=backoff,
        backoff_ms=backoff_ms,
        max_backoff_ms=max_backoff_ms,
        jitter=retry_jitter,
    )
    return set_fields(retry=retry or None)


def policy_fields(
    input: Input = None,
    overlap: Annotated[
        str | None, typer.Option(help="if the previous run has not ended: queue_one, queue_all, skip, allow or replace")
    ] = None,
    misfire: Annotated[str | None, typer.Option(help="slots missed while no worker was up: skip, once or all")] = None,
    timeout: Annotated[int | None, typer.Option(help="maximum duration of a run, in seconds")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="tag; repeatable")] = None,
    priority: Annotated[int | None, typer.Option(help="from -100 to 100; higher runs first")] = None,
    queue: Annotated[str | None, typer.Option(help="queue of its jobs", autocompletion=complete("queues"))] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="schedule whose job of the same slot goes first; repeatable", autocompletion=complete("schedules")
        ),
    ] = None,
    when: Annotated[
        str | None, typer.Option(help="how the jobs of --after must have ended: success, failure or any")
    ] = None,
    max_runs: Annotated[int | None, typer.Option(help="end the schedule after this many slots")] = None,
    start_deadline: Annotated[
        int | None, typer.Option(help="skip a slot that has not started after this many seconds")
    ] = None,
    catch_up_limit: Annotated[int | None, typer.Option(help="maximum number of missed slots to fire")] = None,
    catch_up_spread_hours: Annotated[
        float | None, typer.Option(help="spread missed slots over these hours, with --misfire all")
    ] = None,
    catch_up_approval_slots: Annotated[
        int | None, typer.Option(help="a catch-up of more slots waits for an approval")
    ] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant under which it runs")] = None,
    keep_runs_days: Annotated[
        int | None, typer.Option(help="days that its runs are kept, instead of as long as others")
    ] = None,
    pause_after_failures: Annotated[
        int | None, typer.Option(help="pause it when this many jobs failed one after the other")
    ] = None,
    description: Annotated[str | None, typer.Option(help="description")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="whether it fires")] = None,
) -> Answer:
    """Return the other fields of a schedule."""
    return set_fields(
        input=read_input(input),
        overlap=overlap,
        misfire=misfire,
        timeout_seconds=timeout,
        tags=tag or None,
        priority=priority,
        grant_id=grant,
        keep_runs_days=keep_runs_days,
        pause_after_failures=pause_after_failures,
        description=description,
        enabled=enabled,
        queue=queue,
        after=after or None,
        when=when,
        max_runs=max_runs,
        start_deadline_seconds=start_deadline,
        catch_up_limit=catch_up_limit,
        catch_up_spread_hours=catch_up_spread_hours,
        catch_up_approval_slots=catch_up_approval_slots,
    )


with_schedule_options = with_fields(timing_fields, retry_fields, policy_fields)


def check_one_trigger(fields: Answer) -> None:
    """Exit with USAGE unless the fields have exactly one trigger."""
    every = fields.get("interval") or fields.get("interval_seconds")
    exactly_one(cron=fields.get("cron_expression"), every=every, at=fields.get("run_at"), rrule=fields.get("rrule"))


def print_schedule(connection: Connection, schedule: Answer) -> None:
    """Print a schedule in one line, after it was changed."""
    if not print_data(connection, schedule):
        planned = f"next {local_time(schedule['next_run_at'])}" if schedule["next_run_at"] else "no next slot"
        if state_of(schedule) == "paused":
            planned = (
                f"until {local_time(schedule['paused_until'])}" if schedule["paused_until"] else "until it is resumed"
            )
        print(f"{visible(schedule['name'])}: {schedule['words']}, {visible(state_of(schedule))}, {planned}")


def state_of(schedule: Answer) -> str:
    if schedule["condition"] != "ok":
        return str(schedule["condition"])
    if not schedule["enabled"]:
        return "disabled"
    return "paused" if schedule["paused"] else "enabled"
