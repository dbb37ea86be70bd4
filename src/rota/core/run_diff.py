"""What differs between two runs, as the API shows them: input, output, code version, durations, error. Pure."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

LEAVES_MAX = 500  # of an input or output
LOG_LINES_MAX = 1000  # of each log
TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?|\b\d{2}:\d{2}:\d{2}\b"
)
FACTS = (
    "status", "reason", "kind", "target_name", "target_version", "schedule_id", "slot", "trigger", "attempt", "worker",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of two runs. `a` and `b` are its values, None where a run does not have it."""

    section: str  # run, durations, input, output or error
    name: str
    a: object
    b: object

    @property
    def differs(self) -> bool:
        return self.a != self.b

    @property
    def change(self) -> str:
        """How a number changed: `+20 %`, from twice on `2.5 times`; empty for other values and equal ones."""
        a, b = (
            value if isinstance(value, int | float) and not isinstance(value, bool) else None
            for value in (self.a, self.b)
        )
        if a is None or b is None or a == b or self.section == "run":
            return ""
        if a <= 0 or b <= 0:
            return f"{b - a:+,.6g}"
        return f"{b / a:.3g} times" if b / a >= 2 else f"{(b / a - 1) * 100:+.2g} %"


def compare(a: Mapping[str, object], b: Mapping[str, object]) -> list[Difference]:
    """Return the fields of two runs, equal ones too, by section. Durations are in seconds."""
    differences = [Difference("run", name, a.get(name), b.get(name)) for name in FACTS]
    differences += [
        Difference("durations", name, seconds_between(a, *span), seconds_between(b, *span))
        for name, span in (("waited", ("queued_at", "started_at")), ("took", ("started_at", "finished_at")))
    ]
    names = (("CPU time", "cpu_seconds"), ("peak memory", "peak_memory_bytes"))
    differences += [Difference("durations", name, a.get(field), b.get(field)) for name, field in names]
    for section, field in (("input", "input"), ("output", "outcome")):
        left, right = dict(leaves(a.get(field))), dict(leaves(b.get(field)))
        paths = list(dict.fromkeys([*left, *right]))[:LEAVES_MAX]
        differences += [Difference(section, path or "value", left.get(path), right.get(path)) for path in paths]
    for name in ("type", "message"):
        differences.append(Difference("error", name, error_field(a, name), error_field(b, name)))
    return differences


def seconds_between(run: Mapping[str, object], start: str, end: str) -> float | None:
    started, ended = (instant(run.get(name)) for name in (start, end))
    return None if started is None or ended is None else round((ended - started).total_seconds(), 6)


def instant(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value if isinstance(value, datetime) else None


def error_field(run: Mapping[str, object], name: str) -> object:
    error = run.get("error")
    return error.get(name) if isinstance(error, Mapping) else None


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the plain values of JSON with their paths, such as `orders[0].id`."""
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from leaves(member, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for place, member in enumerate(value):
            yield from leaves(member, f"{path}[{place}]")
    elif value is not None or path:
        yield path, value


def log_diff(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, str]]:
    """Return the differences of two logs as lines with a sign: `-` only in the first, `+` only in the second, a space
    in both, `@` where lines are left out. Timestamps do not count; of longer logs the last LOG_LINES_MAX lines do."""
    left, right = ([TIMESTAMP.sub("·", line) for line in lines[-LOG_LINES_MAX:]] for lines in (a, b))
    lines = difflib.unified_diff(left, right, n=2, lineterm="")
    return [("@", "…") if line.startswith("@@") else (line[0], line[1:]) for line in list(lines)[2:]]
