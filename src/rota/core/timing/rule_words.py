"""Recurrence rules as English phrases: "every 2 weeks on Monday and Friday at 09:00"."""

from datetime import datetime

from rota.core.timing.describe import MONTH_NAMES, clock_time, listing, ordinal, plural
from rota.core.timing.rrule_parts import DATE_PARTS, Parts, parts_of
from rota.core.timing.rrules import minutes_of_day

UNITS = {
    "YEARLY": "year", "MONTHLY": "month", "WEEKLY": "week", "DAILY": "day", "HOURLY": "hour", "MINUTELY": "minute",
}  # fmt: skip
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def rule_words(rule: str, start: datetime) -> str:
    """Return a rule that begins at a local time as a phrase."""
    parts = parts_of(rule)
    numbers = parts.numbers
    unit = UNITS[parts.frequency]
    texts = [f"every {unit}" if parts.interval == 1 else f"every {plural(parts.interval, unit)}"]
    texts += date_words(parts, start)
    if "BYMONTH" in numbers:
        texts.append(f"in {listing(MONTH_NAMES[month - 1] for month in numbers['BYMONTH'])}")
    if "BYSETPOS" in numbers:
        texts.append(f"({listing(nth_words(nth) for nth in numbers['BYSETPOS'])} of these)")
    if parts.frequency == "MINUTELY" and not {"BYHOUR", "BYMINUTE"} & numbers.keys():
        pass
    elif parts.frequency in ("MINUTELY", "HOURLY"):
        if "BYHOUR" in numbers:
            texts.append(f"in the hours {listing(str(hour) for hour in numbers['BYHOUR'])}")
        minutes = numbers.get("BYMINUTE", () if parts.frequency == "MINUTELY" else (start.minute,))
        if minutes:
            texts.append(f"at minute{'s' if len(minutes) > 1 else ''} {listing(str(minute) for minute in minutes)}")
    else:
        texts.append(f"at {listing(clock_time(minute) for minute in sorted(minutes_of_day(rule, start)))}")
    text = " ".join(texts)
    if parts.count is not None:
        text += f", {plural(parts.count, 'time')}"
    if parts.until is not None:
        text += f", until {parts.until[:4]}-{parts.until[4:6]}-{parts.until[6:8]}"
    return text


def date_words(parts: Parts, start: datetime) -> list[str]:
    numbers, texts = parts.numbers, list[str]()
    if not (parts.weekdays or any(name in numbers for name in DATE_PARTS)):
        match parts.frequency:
            case "YEARLY" if "BYMONTH" not in numbers:
                return [f"on {start.day} {MONTH_NAMES[start.month - 1]}"]
            case "YEARLY" | "MONTHLY":
                return [f"on the {ordinal(start.day)}"]
            case "WEEKLY":
                return [f"on {WEEKDAY_NAMES[start.weekday()]}"]
            case _:
                return []
    if parts.weekdays:
        names = [
            f"the {nth_words(nth)} {WEEKDAY_NAMES[day]}" if nth else WEEKDAY_NAMES[day] for day, nth in parts.weekdays
        ]
        texts.append(f"on {listing(names)}")
    if "BYMONTHDAY" in numbers:
        texts.append(f"on the {listing(nth_words(day) for day in numbers['BYMONTHDAY'])} of the month")
    if "BYYEARDAY" in numbers:
        texts.append(f"on the {listing(nth_words(day) for day in numbers['BYYEARDAY'])} day of the year")
    if "BYWEEKNO" in numbers:
        texts.append(f"in week {listing(str(week) for week in numbers['BYWEEKNO'])}")
    return texts


def nth_words(nth: int) -> str:
    """`2nd`, `last`, `2nd to last`."""
    if nth > 0:
        return ordinal(nth)
    return "last" if nth == -1 else f"{ordinal(-nth)} to last"
