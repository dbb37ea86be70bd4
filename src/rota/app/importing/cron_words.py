"""Cron expressions of other programs, where day of month and day of week mean something else than here. Pure."""

import re

from rota.app.importing.patterns import NotConvertible
from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_cron

EXPRESSION_CHARACTERS = 500


def day_or_day(expression: str) -> str:
    """Return the expression for Rota of one where a star with a step, such as `*/2`, restricts a day field: if both day
    fields are restricted, one of them is enough. `?` is a star. Raises NotConvertible."""
    fields = expression[:EXPRESSION_CHARACTERS].split()
    if len(fields) == 5:
        fields = [re.sub(r"^\?$", "*", field) for field in fields]
        day, weekday = fields[2], fields[4]
        if not (is_star(day) or is_star(weekday)):
            fields[2] = re.sub(r"^\*", "1-31", day)
            fields[4] = re.sub(r"^\*", "0-6", weekday)
    try:
        return parse_cron(" ".join(fields)).expression
    except Invalid as error:
        raise NotConvertible(error.message) from None


def is_star(field: str) -> bool:
    return field in ("*", "*/1")
