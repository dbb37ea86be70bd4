"""The options of a schedule, for all commands that create or edit one, and the line that shows it afterwards."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rota.frame.cli.connection import Connection
from rota.frame.cli.options import exactly_one, read_input
from rota.frame.cli.output import local_time, print_data
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import future_option

Input = Annotated[str | None, typer.Option(help="input as JSON, or @file")]


def schedule_fields(
    cron: Annotated[str | None, typer.Option(help="five fields, such as '0 2 * * *'")] = None,
    every: Annotated[str | None, typer.Option(help="an interval, such as 30s, 5m, 2h, 1d")] = None,
    at: Annotated[str | None, future_option(help="once: 2h, 13:00, '2026-11-20 09:00', …")] = None,
    tz: Annotated[str | None, typer.Option(help="time zone, such as Europe/Oslo")] = None,
    input: Input = None,
    overlap: Annotated[str | None, typer.Option(help="queue_one, queue_all, skip, allow or replace")] = None,
    misfire: Annotated[str | None, typer.Option(help="skip, once or all")] = None,
    timeout: Annotated[int | None, typer.Option(help="seconds a run may take")] = None,
    retries: Annotated[int | None, typer.Option(help="attempts after a failed one")] = None,
    backoff: Annotated[str | None, typer.Option(help="between retries: fixed or exponential")] = None,
    backoff_ms: Annotated[int | None, typer.Option(help="milliseconds before the first retry")] = None,
    max_backoff_ms: Annotated[int | None, typer.Option(help="milliseconds before a retry at most")] = None,
    window: Annotated[str | None, typer.Option(help="only between these times of day, as 22:00-06:00")] = None,
    jitter: Annotated[float | None, typer.Option(help="seconds by which slots are spread")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="may be given several times")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100; higher goes first")] = None,
    queue: Annotated[str | None, typer.Option(help="the queue that its jobs wait in")] = None,
    max_runs: Annotated[int | None, typer.Option(help="finished after so many slots")] = None,
    start_deadline: Annotated[int | None, typer.Option(help="seconds after the slot; later it is skipped")] = None,
    catch_up_limit: Annotated[int | None, typer.Option(help="missed slots that are fired at most")] = None,
    starts: Annotated[str | None, future_option(help="no slot before this time")] = None,
    ends: Annotated[str | None, future_option(help="no slot after this time")] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant that it runs under")] = None,
    description: Annotated[str | None, typer.Option()] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="whether anything is planned")] = None,
) -> dict[str, Any]:
    """Return the fields of a schedule as the API takes them; options that are not set are left out."""
    start, _, end = window.partition("-") if window is not None else (None, "", None)
    retry = {
        "max_retries": retries, "backoff_type": backoff, "backoff_ms": backoff_ms, "max_backoff_ms": max_backoff_ms,
    }  # fmt: skip
    fields = {
        "cron_expression": cron, "interval": every, "run_at": at, "timezone": tz, "input": read_input(input),
        "overlap": overlap, "misfire": misfire, "timeout_seconds": timeout, "window_start": start, "window_end": end,
        "retry": {name: value for name, value in retry.items() if value is not None} or None, "jitter_seconds": jitter,
        "tags": tag or None, "priority": priority, "grant_id": grant, "description": description, "enabled": enabled,
        "queue": queue, "max_runs": max_runs, "start_deadline_seconds": start_deadline,
        "catch_up_limit": catch_up_limit, "starts_at": starts, "ends_at": ends,
    }  # fmt: skip
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


def check_one_trigger(fields: dict[str, Any]) -> None:
    """Exit with USAGE unless the fields have exactly one trigger."""
    exactly_one(cron=fields.get("cron_expression"), every=fields.get("interval"), at=fields.get("run_at"))


def print_schedule(connection: Connection, schedule: dict[str, Any]) -> None:
    """Print a schedule in one line, after it was changed."""
    if not print_data(connection, schedule):
        planned = f"next {local_time(schedule['next_run_at'])}" if schedule["next_run_at"] else "nothing planned"
        if state_of(schedule) == "paused":
            planned = (
                f"until {local_time(schedule['paused_until'])}" if schedule["paused_until"] else "until it is resumed"
            )
        print(f"{visible(schedule['name'])}: {schedule['words']}, {visible(state_of(schedule))}, {planned}")


def state_of(schedule: dict[str, Any]) -> str:
    if schedule["condition"] != "ok":
        return str(schedule["condition"])
    if not schedule["enabled"]:
        return "disabled"
    return "paused" if schedule["paused"] else "enabled"
