"""The grammar of recurrence rules: what is accepted of RFC 5545, and its limits. Pure.

At least a minute between two times, at most TIMES_PER_DAY times in a day of a rule by days or longer periods, at most
COUNT_MAX times in total, and periods of at most a year, by years and months of at most 50.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from rota.core.errors import Invalid

MAX_RULE_LENGTH = 500
COUNT_MAX = 10_000
TIMES_PER_DAY = 24
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")  # as numbered by dateutil
LONGEST_INTERVAL = {  # about a year, by years and months 50 years
    "YEARLY": 50,
    "MONTHLY": 600,
    "WEEKLY": 52,
    "DAILY": 366,
    "HOURLY": 8_784,
    "MINUTELY": 527_040,
}
NUMBERS = {  # parts that are lists of numbers: argument of dateutil, limits, whether negative ones count from the end
    "BYMONTH": ("bymonth", 1, 12, False),
    "BYMONTHDAY": ("bymonthday", 1, 31, True),
    "BYYEARDAY": ("byyearday", 1, 366, True),
    "BYWEEKNO": ("byweekno", 1, 53, True),
    "BYHOUR": ("byhour", 0, 23, False),
    "BYMINUTE": ("byminute", 0, 59, False),
    "BYSECOND": ("bysecond", 0, 59, False),
    "BYSETPOS": ("bysetpos", 1, 366, True),
}
DATE_PARTS = ("BYWEEKNO", "BYYEARDAY", "BYMONTHDAY", "BYDAY")


@dataclass(frozen=True, slots=True)
class Parts:
    """A parsed rule: what it says, without the parts that DTSTART adds."""

    frequency: str
    interval: int
    numbers: dict[str, tuple[int, ...]]  # by name of the part
    weekdays: tuple[tuple[int, int], ...]  # (weekday from Monday = 0, nth or 0)
    week_start: int
    count: int | None
    until: str | None


def normalize_rule(rule: object) -> str:
    """Return the rule in capitals without the prefix `RRULE:`. Raises Invalid if it is not a rule."""
    if not isinstance(rule, str):
        raise invalid_rule(rule, "must be text")
    if len(rule) > MAX_RULE_LENGTH:
        raise invalid_rule(rule[:50], f"is longer than {MAX_RULE_LENGTH} characters")
    text = rule.strip().upper().removeprefix("RRULE:").rstrip(";")
    if not re.fullmatch(r"[A-Z0-9=;,+:-]+", text):
        raise invalid_rule(rule, "must be one recurrence rule of RFC 5545 such as FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9")
    parts_of(text)
    return text


@lru_cache(maxsize=1024)
def parts_of(rule: str) -> Parts:
    """Parse a rule. Raises Invalid."""
    values: dict[str, str] = {}
    for part in rule.split(";"):
        name, equals, value = part.partition("=")
        if name.startswith(("DTSTART", "EXDATE", "RDATE")):
            remedy = "give it as `anchor`" if name.startswith("DTSTART") else "use a calendar for single dates"
            raise invalid_rule(rule, f"must be a rule alone, without {name.partition(':')[0]}: {remedy}")
        if not (equals and value):
            raise invalid_rule(rule, f"has a part {part!r}, which must be NAME=VALUE")
        if name in values:
            raise invalid_rule(rule, f"has {name} twice")
        values[name] = value
    frequency = values.pop("FREQ", "")
    if frequency == "SECONDLY":
        raise invalid_rule(rule, "may not repeat every second: use `interval` for spans under a minute")
    if frequency not in FREQUENCIES:
        raise invalid_rule(rule, f"needs FREQ, one of {', '.join(FREQUENCIES)}")
    try:
        parts = Parts(
            frequency,
            number_in(values.pop("INTERVAL", "1"), "INTERVAL", 1, LONGEST_INTERVAL[frequency]),
            {name: numbers_in(values.pop(name), name) for name in NUMBERS if name in values},
            tuple(weekday_in(item, frequency) for item in values.pop("BYDAY").split(",")) if "BYDAY" in values else (),
            week_start_in(values.pop("WKST", "MO")),
            number_in(values.pop("COUNT"), "COUNT", 1, COUNT_MAX) if "COUNT" in values else None,
            values.pop("UNTIL", None),
        )
    except ValueError as error:
        raise invalid_rule(rule, str(error)) from None
    if values:
        raise invalid_rule(rule, f"has the unknown part {sorted(values)[0]}")
    check_parts(rule, parts)
    return parts


def check_parts(rule: str, parts: Parts) -> None:
    numbers = parts.numbers
    if parts.count is not None and parts.until is not None:
        raise invalid_rule(rule, "has COUNT and UNTIL: give one of them")
    if parts.until is not None and not re.fullmatch(r"[0-9]{8}(T[0-9]{6}Z?)?", parts.until):
        raise invalid_rule(rule, "has an UNTIL that is not a time such as 20271231T230000Z or a date such as 20271231")
    by_set = [name for name in numbers if name != "BYSETPOS"]
    if "BYSETPOS" in numbers and not (by_set or parts.weekdays):
        raise invalid_rule(rule, "has BYSETPOS, which needs another part such as BYDAY")
    if "BYWEEKNO" in numbers and parts.frequency != "YEARLY":
        raise invalid_rule(rule, "has BYWEEKNO, which needs FREQ=YEARLY")
    if "BYYEARDAY" in numbers and parts.frequency in ("DAILY", "WEEKLY", "MONTHLY"):
        raise invalid_rule(rule, f"has BYYEARDAY, which cannot be combined with FREQ={parts.frequency}")
    if "BYMONTHDAY" in numbers and parts.frequency == "WEEKLY":
        raise invalid_rule(rule, "has BYMONTHDAY, which cannot be combined with FREQ=WEEKLY")
    per_day = 1
    for name in ("BYHOUR", "BYMINUTE", "BYSECOND"):
        per_day *= len(numbers.get(name, (0,)))
    if FREQUENCIES.index(parts.frequency) <= FREQUENCIES.index("DAILY") and per_day > TIMES_PER_DAY:
        raise invalid_rule(
            rule, f"has {per_day} times per day, at most {TIMES_PER_DAY} are allowed: use FREQ=HOURLY or FREQ=MINUTELY"
        )
    if len(numbers.get("BYSECOND", ())) > 1:
        raise invalid_rule(rule, "has several BYSECOND: use `interval` for spans under a minute")


def number_in(text: str, name: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ValueError(f"has {name}={text}, which must be a number from {low} to {high}")
    return int(text)


def numbers_in(text: str, name: str) -> tuple[int, ...]:
    _, low, high, signed = NUMBERS[name]
    numbers = set[int]()
    for item in text.split(","):
        value = item.removeprefix("+")
        negative = signed and value.startswith("-")
        number = number_in(value.removeprefix("-") if negative else value, name, low, high)
        numbers.add(-number if negative else number)
    return tuple(sorted(numbers))


def weekday_in(text: str, frequency: str) -> tuple[int, int]:
    parts = re.fullmatch(r"([+-]?[0-9]{1,2})?([A-Z]{2})", text)
    nth = int(parts[1] or 0) if parts else 0
    if parts is None or parts[2] not in WEEKDAYS or (parts[1] and not 1 <= abs(nth) <= 53):
        raise ValueError(f"has BYDAY={text}, which must be a weekday such as MO or, in a month or year, 2MO or -1FR")
    if nth and frequency not in ("MONTHLY", "YEARLY"):
        raise ValueError(f"has BYDAY={text}, but a numbered weekday needs FREQ=MONTHLY or FREQ=YEARLY")
    return WEEKDAYS.index(parts[2]), nth


def week_start_in(text: str) -> int:
    if text not in WEEKDAYS:
        raise ValueError(f"has WKST={text}, which must be one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


def invalid_rule(rule: object, right: str) -> Invalid:
    return Invalid("rrule", rule, right)
