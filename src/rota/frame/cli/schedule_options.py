"""The options of a schedule, for all commands that create or edit one, and the line that shows it afterwards."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rota.frame.cli.connection import Answer, Connection
from rota.frame.cli.options import exactly_one, read_input
from rota.frame.cli.output import local_time, print_data
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import future_option

Input = Annotated[str | None, typer.Option(help="input as JSON, or @file")]


def schedule_fields(
    cron: Annotated[str | None, typer.Option(help="cron expression with five fields, such as '0 2 * * *'")] = None,
    every: Annotated[str | None, typer.Option(help="interval, such as 30s, 5m, 2h, 1d")] = None,
    at: Annotated[str | None, future_option(help="run once at: 2h (from now), 13:00, '2026-11-20 09:00', …")] = None,
    tz: Annotated[str | None, typer.Option(help="time zone, such as Europe/Oslo")] = None,
    input: Input = None,
    overlap: Annotated[
        str | None, typer.Option(help="if the previous run has not ended: queue_one, queue_all, skip, allow or replace")
    ] = None,
    misfire: Annotated[str | None, typer.Option(help="slots missed while no worker was up: skip, once or all")] = None,
    timeout: Annotated[int | None, typer.Option(help="maximum duration of a run, in seconds")] = None,
    retries: Annotated[int | None, typer.Option(help="maximum number of retries after a failure")] = None,
    backoff: Annotated[str | None, typer.Option(help="delay between retries: fixed or exponential")] = None,
    backoff_ms: Annotated[int | None, typer.Option(help="delay before the first retry, in milliseconds")] = None,
    max_backoff_ms: Annotated[int | None, typer.Option(help="maximum delay before a retry, in milliseconds")] = None,
    window: Annotated[str | None, typer.Option(help="only between these times of day, such as 22:00-06:00")] = None,
    jitter: Annotated[float | None, typer.Option(help="spread start times over this many seconds")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="tag; repeatable")] = None,
    priority: Annotated[int | None, typer.Option(help="from -100 to 100; higher runs first")] = None,
    queue: Annotated[str | None, typer.Option(help="queue of its jobs")] = None,
    max_runs: Annotated[int | None, typer.Option(help="end the schedule after this many slots")] = None,
    start_deadline: Annotated[
        int | None, typer.Option(help="skip a slot that has not started after this many seconds")
    ] = None,
    catch_up_limit: Annotated[int | None, typer.Option(help="maximum number of missed slots to fire")] = None,
    starts: Annotated[str | None, future_option(help="first time at which it can fire")] = None,
    ends: Annotated[str | None, future_option(help="last time at which it can fire")] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant under which it runs")] = None,
    description: Annotated[str | None, typer.Option(help="description")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="whether it fires")] = None,
) -> Answer:
    """Return the fields of a schedule as the API takes them; options that are not set are left out."""
    start, _, end = window.partition("-") if window is not None else (None, "", None)
    retry = {
        "max_retries": retries,
        "backoff_type": backoff,
        "backoff_ms": backoff_ms,
        "max_backoff_ms": max_backoff_ms,
    }
    fields = {
        "cron_expression": cron,
        "interval": every,
        "run_at": at,
        "timezone": tz,
        "input": read_input(input),
        "overlap": overlap,
        "misfire": misfire,
        "timeout_seconds": timeout,
        "window_start": start,
        "window_end": end,
        "retry": {name: value for name, value in retry.items() if value is not None} or None,
        "jitter_seconds": jitter,
        "tags": tag or None,
        "priority": priority,
        "grant_id": grant,
        "description": description,
        "enabled": enabled,
        "queue": queue,
        "max_runs": max_runs,
        "start_deadline_seconds": start_deadline,
        "catch_up_limit": catch_up_limit,
        "starts_at": starts,
        "ends_at": ends,
    }
    return {field: value for field, value in fields.items() if value is not None}


def with_schedule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `schedule_fields` to a command, which receives their values as `fields`."""
    own, shared = inspect.signature(command).parameters, inspect.signature(schedule_fields).parameters

    @functools.wraps(command)
    def call(**values: Any) -> None:
        fields = schedule_fields(**{name: values.pop(name) for name in shared})
        command(**values, fields=fields)

    of_command = [parameter for parameter in own.values() if parameter.name != "fields"]
    call.__signature__ = inspect.Signature([*of_command, *shared.values()])  # type: ignore[attr-defined]
    return call


def check_one_trigger(fields: Answer) -> None:
    """Exit with USAGE unless the fields have exactly one trigger."""
    exactly_one(cron=fields.get("cron_expression"), every=fields.get("interval"), at=fields.get("run_at"))


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
