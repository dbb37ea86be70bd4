"""`H` in cron expressions: a value that is stable per schedule, so that schedules spread over an hour or a day.

    H * * * *         once an hour, at a minute of the schedule's own
    H H(1-5) * * *    once a night between 01:00 and 05:59
    H/15 * * * *      every 15 minutes, from a minute below 15 on
    H(0-29)/10 * * * *    at three minutes of the first half hour

The values come from a hash of the seed, which is the name that the schedule had when it got the expression, and of the
field. The result is an ordinary expression.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from rota.core.errors import Invalid

SPREAD_TERM = re.compile(r"H(?:\(([0-9]{1,4})-([0-9]{1,4})\))?(?:/([0-9]{1,4}))?")
FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 28), ("month", 1, 12), ("day of week", 0, 6))


def has_spread(expression: str) -> bool:
    """Whether an expression has an `H`, other than in a name such as THU or MARCH."""
    return any(term.startswith("H") for text in expression.upper().split() for term in text.split(","))


@lru_cache(maxsize=4096)
def without_spread(expression: str, seed: str) -> str:
    """Return an expression with each `H` replaced by the values of the seed. Raises Invalid for a wrong `H`."""
    texts = expression.upper().split()
    if len(texts) != len(FIELDS) or not has_spread(expression):
        return expression
    try:
        return " ".join(
            ",".join(spread_term(term, position, seed) for term in text.split(","))
            for position, text in enumerate(texts)
        )
    except ValueError as error:
        raise Invalid("cron_expression", expression, f"is not a cron expression ({error})") from None


def spread_term(term: str, position: int, seed: str) -> str:
    if not term.startswith("H"):
        return term
    name, low, high = FIELDS[position]
    parts = SPREAD_TERM.fullmatch(term)
    if parts is None:
        raise ValueError(f"bad {name} {term!r}, allowed are H, H(a-b), H/n and H(a-b)/n")
    if parts[1]:
        start, end = int(parts[1]), int(parts[2])
        if not low <= start <= end <= high:
            raise ValueError(f"bad {name} {term!r}, the range of H goes from {low} to {high}")
        low, high = start, end
    if not parts[3]:
        return str(low + hashed(seed, name) % (high - low + 1))
    step = int(parts[3])
    if not 1 <= step <= high - low + 1:
        raise ValueError(f"bad step in {name} {term!r}, it goes from 1 to {high - low + 1}")
    return f"{low + hashed(seed, name) % step}-{high}/{step}"


def hashed(seed: str, field: str) -> int:
    return int.from_bytes(blake2b(f"{field}:{seed}".encode(), digest_size=8).digest())
