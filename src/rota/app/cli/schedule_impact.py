"""The impact of an edit of a schedule, as lines for people."""

import json

from rota.frame.cli.connection import Answer, print_stderr
from rota.frame.cli.output import local_time, print_table
from rota.frame.cli.terminal import visible

ROWS_SHOWN = 20  # slots of an impact that are printed; --output json has more


def print_impact(impact: Answer) -> None:
    """Print fields, slots and notes of an impact."""
    for change in impact["fields"]:
        print(visible(f"{change['field']}: {as_text(change['before'])} -> {as_text(change['after'])}"))
    print(summary_of(impact))
    rows = slot_rows(impact)
    if rows:
        print_table(("change", "slot", "new slot"), rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        print_stderr(f"note: {len(rows) - ROWS_SHOWN} further slots; -o json has them")
    for note in notes_of(impact):
        print_stderr(f"note: {note}")


def summary_of(impact: Answer) -> str:
    """Return the number of changed slots in one line."""
    counts = ", ".join(f"{impact[f'{change}_count']} {change}" for change in ("added", "removed", "moved"))
    before, after = (impact[f"slots_{when}"] for when in ("before", "after"))
    total = f"{'many' if before is None else before} slots -> {'many' if after is None else after}"
    return f"until {local_time(impact['until'])}: {total} ({counts})"


def slot_rows(impact: Answer) -> list[list[str]]:
    """Return the changed slots by time: change, old and new slot."""
    rows = [
        *((slot, ["added", "", local_time(slot)]) for slot in impact["added"]),
        *((slot, ["removed", local_time(slot), ""]) for slot in impact["removed"]),
        *((slot["from"], ["moved", local_time(slot["from"]), local_time(slot["to"])]) for slot in impact["moved"]),
    ]
    return [row for _, row in sorted(rows)]


def notes_of(impact: Answer) -> list[str]:
    """Return holidays, usual duration, cost and warnings as sentences."""
    notes = [
        f"{day['date']} is a holiday: {'moved to ' + day['moved_to'] if day['moved_to'] else 'left out'}"
        for day in impact["left_out"]
    ]
    if (usual := impact["usual_run"]) is not None:
        notes.append(
            f"usual duration: {usual['median_seconds']:.1f} s, 95 of 100 within {usual['p95_seconds']:.1f} s "
            f"({usual['runs']} runs)"
        )
    if (cost := impact["cost"]) is not None:
        dollars = "" if cost["usd_after"] is None else f", {cost['usd_before']} -> {cost['usd_after']} USD"
        notes.append(f"estimated cost: {cost['credits_before']} -> {cost['credits_after']} credits{dollars}")
    return [*notes, *impact["warnings"]]


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
