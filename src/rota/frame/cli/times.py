"""Parse times of the command line into RFC 3339 for the API. Times without an offset are in the machine's zone."""

import re
from datetime import datetime, timedelta
from typing import Annotated

import typer
from typer.models import OptionInfo

EXAMPLES = "1h, 13:00, 2026-11-16, '2026-11-16 13:00' or 2026-11-16T13:00:00+01:00"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw]\s*)+", re.ASCII)
PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def past(text: str) -> str:
    """Return RFC 3339; a duration counts back from now, a time of day is the last one. Raises BadParameter."""
    return read_time(text, ahead=False)


def future(text: str) -> str:
    """Return RFC 3339; a duration counts from now, a time of day is its next one. Raises BadParameter."""
    return read_time(text, ahead=True)


def read_time(text: str, ahead: bool) -> str:
    from rota.core.clock import system_time

    now, text = system_time().astimezone(), text.strip()
    if text == "now":
        return now.isoformat()
    if text.startswith("in ") or text.endswith(" ago"):  # as tables print it
        ahead, text = text.startswith("in "), text.removeprefix("in ").removesuffix(" ago").strip()
    if DURATION.fullmatch(text):
        span = timedelta(seconds=sum(float(number) * UNITS[unit] for number, unit in PART.findall(text)))
        return (now + span if ahead else now - span).isoformat()
    if clock := CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=None)
        days = (1 if ahead and at <= now.replace(tzinfo=None) else 0) - (
            1 if not ahead and at > now.replace(tzinfo=None) else 0
        )
        return (at + timedelta(days=days)).astimezone().isoformat()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a time; use {EXAMPLES}") from None
    return at.isoformat() if at.tzinfo is not None else at.astimezone().isoformat()


def past_option(*names: str, help: str) -> OptionInfo:
    """Return an option for a time in the past: a duration counts back from now."""
    option: OptionInfo = typer.Option(*names, parser=past, metavar="TIME", help=help)
    return option


def future_option(*names: str, help: str) -> OptionInfo:
    """Return an option for a time in the future: a duration counts from now."""
    option: OptionInfo = typer.Option(*names, parser=future, metavar="TIME", help=help)
    return option


Since = Annotated[str | None, past_option(help="start of the range: 1h (ago), 13:00, 2026-11-16, …")]
Until = Annotated[str | None, future_option(help="end of the range")]
