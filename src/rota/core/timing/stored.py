"""Timings as JSON data, as they are stored with schedules and trigger spans. Pure.

A key that is absent has the meaning that it had before it was added: a timing without `dst` follows the set of its
hours. So stored schedules keep their slots.
"""

from collections.abc import Mapping
from datetime import time
from typing import assert_never

from rota.core.errors import Invalid
from rota.core.order import After, When
from rota.core.timing.calendars import HolidayRule, dump_calendar, load_calendar
from rota.core.timing.dst import TICK, DstGap, DstRepeat
from rota.core.timing.triggers import (
    Cron,
    Every,
    Once,
    Recurring,
    Timing,
    Trigger,
    parse_cron,
    parse_instant,
    parse_rule,
    parse_zone,
)
from rota.core.timing.windows import Window


def dump(timing: Timing) -> dict[str, object]:
    """Return the timing as JSON data; `load` restores it."""
    match timing.trigger:
        case Cron(expression, seed):
            trigger: dict[str, object] = {"type": "cron", "expression": expression}
            if seed:
                trigger["seed"] = seed
        case Every(span, anchor):
            trigger = {"type": "interval", "microseconds": span // TICK, "anchor": anchor.isoformat()}
        case Once(at):
            trigger = {"type": "once", "at": at.isoformat()}
        case Recurring(rule, anchor):
            trigger = {"type": "rrule", "rule": rule, "anchor": anchor.isoformat()}
        case _:
            assert_never(timing.trigger)
    window, chosen = timing.window, dict[str, object]()
    if timing.dst_gap is not None or timing.dst_repeat is not None:
        chosen["dst"] = [timing.dst_gap, timing.dst_repeat]
    if timing.holidays is not None:
        chosen["calendar"] = dump_calendar(timing.holidays.calendar)
        chosen["on_holiday"] = timing.holidays.on_holiday
    if timing.after is not None:
        chosen["after"], chosen["when"] = list(timing.after.schedules), timing.after.when.value
    return {
        "trigger": trigger,
        "zone": timing.zone,
        "window": [window.start.isoformat(), window.end.isoformat()] if window else None,
        "starts_at": timing.starts_at.isoformat() if timing.starts_at else None,
        "ends_at": timing.ends_at.isoformat() if timing.ends_at else None,
        "jitter_microseconds": timing.jitter // TICK,
        **chosen,
    }


def load(data: Mapping[str, object]) -> Timing:
    """Restore a timing from `dump`. Raises Invalid for anything else, such as a damaged row."""
    try:
        match data["trigger"]:
            case {"type": "cron", "expression": expression, "seed": str(seed)}:
                trigger: Trigger = parse_cron(expression, seed)
            case {"type": "cron", "expression": expression}:
                trigger = parse_cron(expression)
            case {"type": "interval", "microseconds": int(span), "anchor": anchor} if span > 0:
                trigger = Every(TICK * span, parse_instant(anchor, "anchor"))
            case {"type": "once", "at": at}:
                trigger = Once(parse_instant(at, "run_at"))
            case {"type": "rrule", "rule": rule, "anchor": anchor}:
                trigger = Recurring(parse_rule(rule), parse_instant(anchor, "anchor"))
            case _:
                raise ValueError
        bounds = [parse_instant(data[key], key) if data[key] else None for key in ("starts_at", "ends_at")]
        match data["window"], data["jitter_microseconds"]:
            case None, int(jitter):
                window = None
            case [str(start), str(end)], int(jitter):
                window = Window(time.fromisoformat(start), time.fromisoformat(end))
            case _:
                raise ValueError
        gap, repeat = load_dst(data.get("dst"))
        return Timing(
            trigger, parse_zone(data["zone"]), window, bounds[0], bounds[1], TICK * jitter, gap, repeat,
            load_holidays(data.get("calendar"), data.get("on_holiday")), 
            load_after(data.get("after"), data.get("when")),
        )  # fmt: skip
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise Invalid("timing", data, "is not a stored timing") from None


def load_dst(data: object) -> tuple[DstGap | None, DstRepeat | None]:
    match data:
        case None:
            return None, None
        case ["run_after" | "skip" | None as gap, "first" | "both" | None as repeat]:
            return gap, repeat
        case _:
            raise ValueError


def load_holidays(calendar: object, on_holiday: object) -> HolidayRule | None:
    match calendar, on_holiday:
        case None, None:
            return None
        case dict(), "skip" | "next" | "previous" | "run" as choice:
            return HolidayRule(load_calendar(calendar), choice)
        case _:
            raise ValueError


def load_after(schedules: object, when: object) -> After | None:
    match schedules:
        case None:
            return None
        case [str(), *_]:
            return After(tuple(map(str, schedules)), When(str(when)))
        case _:
            raise ValueError
