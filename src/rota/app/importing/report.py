"""The result of an import: entries for files, and what became of each item of the source."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from rota.app.importing.patterns import NotConvertible
from rota.core.errors import Invalid
from rota.core.schedule_form import Defaults, parse_schedule
from rota.db.paging import Record
from rota.kinds.tasks.models import TaskBody

Outcome = Literal["imported", "partly", "not imported", "no schedule"]
NAME_CHARACTERS = 60
TASK_DEFAULTS = {"task": Defaults()}


@dataclass(frozen=True, slots=True)
class ReportLine:
    """What became of a line of the source. `no schedule` is a comment, an empty line or a setting without a job."""

    line: int
    outcome: Outcome
    text: str
    note: str = ""
    file: str = ""


@dataclass(slots=True)
class Entries:
    """What an item of the source becomes, and what was lost of it."""

    schedules: list[Record] = field(default_factory=list)
    tasks: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""  # what it became, in words


@dataclass(slots=True)
class Imported:
    tasks: list[Record] = field(default_factory=list)
    schedules: list[Record] = field(default_factory=list)
    report: list[ReportLine] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    @property
    def resources(self) -> dict[str, list[Record]]:
        return {"tasks": self.tasks, "schedules": self.schedules}

    def name_for(self, text: str, prefix: str = "") -> str:
        """Return a name made from a text, which no other entry has, and reserve it."""
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "job"
        base = (f"{prefix}-{base}" if prefix else base)[:NAME_CHARACTERS]
        name, number = base, 1
        while name in self.names:
            number += 1
            name = f"{base}-{number}"
        self.names.add(name)
        return name

    def add(self, schedules: Iterable[Record], tasks: Iterable[Record], now: datetime) -> None:
        """Add entries. Raises Invalid, and adds none, if one would be refused."""
        schedules, tasks = list(schedules), list(tasks)
        for task in tasks:
            TaskBody.read(task)
        for schedule in schedules:
            parse_schedule(schedule, org_id="", defaults=TASK_DEFAULTS, now=now, source="file", by=None)
        self.tasks += tasks
        self.schedules += schedules

    def take(self, place: tuple[str, int, str], make: Callable[[], Entries], now: datetime) -> bool:
        """Add what `make` returns and report the item, whose place is its file, line and text. An item that has no
        counterpart is reported as not imported; then this returns False."""
        try:
            entries = make()
            self.add(entries.schedules, entries.tasks, now)
        except NotConvertible as error:
            self.refuse(*place, str(error))
        except Invalid as error:
            self.refuse(*place, error.message)
        except (OverflowError, TypeError, ValueError) as error:  # a number that is too large for a date or a span
            self.refuse(*place, f"has a value that is out of range: {error}")
        else:
            self.record(*place, entries.notes, imported=entries.text)
            return True
        return False

    def record(self, file: str, line: int, text: str, notes: Iterable[str] = (), *, imported: str = "") -> None:
        """Report an imported item; `notes` are what was lost of it, `imported` is what it became."""
        notes = list(notes)
        outcome: Outcome = "partly" if notes else "imported"
        self.report.append(ReportLine(line, outcome, text, "; ".join([imported] * bool(imported) + notes), file))

    def refuse(self, file: str, line: int, text: str, reason: str) -> None:
        """Report an item that is not imported."""
        self.report.append(ReportLine(line, "not imported", text, reason, file))
