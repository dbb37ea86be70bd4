"""`rota schedule backfill`: fire past slots."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Connection, item_path, print_stderr
from rota.frame.cli.output import print_data, progress
from rota.frame.cli.times import past_option

BACKFILL_CHUNK_SLOTS = 100
Name = Annotated[str, typer.Argument(help="name or id of the schedule", autocompletion=complete("schedules"))]


def backfill(
    ctx: typer.Context,
    name: Name,
    since: Annotated[str, past_option("--from", help="start of the range: 2d (ago), 2026-11-16, …")],
    until: Annotated[str, past_option("--to", help="end of the range: now, 1h (ago), …")],
    reprocess: Annotated[bool, typer.Option("--reprocess", help="include slots that already ran")] = False,
    limit: Annotated[int | None, typer.Option(help="maximum number of slots")] = None,
    spread_hours: Annotated[float | None, typer.Option(help="spread the slots over so many hours from now on")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the slots without firing them")] = False,
) -> None:
    """Fire past slots that did not run."""
    body = {"from": since, "to": until, "reprocess": reprocess, "limit": limit, "dry_run": True}
    body |= {"spread_hours": spread_hours} if spread_hours is not None else {}
    answer = ctx.obj.post(item_path("schedules", name, "$backfill"), body)
    print_warnings(answer)
    whole = spread_hours is not None or answer["plan"]["waits_for"]
    if not dry_run and answer["slots"]:
        answer = fire_slots(ctx.obj, name, body, answer, whole=bool(whole))
    fields = ("count", "slots", "plan", "catch_up")
    if print_data(ctx.obj, {field: answer[field] for field in fields}):
        return
    for slot in answer["slots"]:
        print(slot)
    print_stderr(f"{len(answer['slots'])} slots{' would fire' if dry_run else ''}")
    if dry_run and whole and answer["plan"]["waits_for"]:
        print_stderr(f"they would wait for an approval: {'; '.join(answer['plan']['waits_for'])}")
    if answer["catch_up"] is not None:
        print_waiting(answer["catch_up"])


def fire_slots(connection: Connection, name: str, body: Answer, planned: Answer, *, whole: bool) -> Answer:
    """Backfill the slots of a dry run: in one request if they wait for an approval or are spread, else in chunks."""
    if whole:
        return connection.post(item_path("schedules", name, "$backfill"), {**body, "dry_run": False})
    slots = backfill_in_chunks(connection, name, body, planned["slots"])
    return {**planned, "count": len(slots), "slots": slots}


def backfill_in_chunks(connection: Connection, name: str, body: Answer, slots: list[str]) -> list[str]:
    """Backfill slots in chunks of 100, with a progress bar: a single large request would block other writers."""
    fired: list[str] = []
    with progress(len(slots), "slots") as advance:
        for start in range(0, len(slots), BACKFILL_CHUNK_SLOTS):
            chunk = slots[start : start + BACKFILL_CHUNK_SLOTS]
            part = {**body, "from": chunk[0], "to": chunk[-1], "limit": len(chunk), "dry_run": False}
            fired += connection.post(item_path("schedules", name, "$backfill"), part)["slots"]
            advance(len(chunk))
    return fired


def print_waiting(catch_up: Answer) -> None:
    print_stderr(f"catch-up {catch_up['id']} waits for an approval: {'; '.join(catch_up['waits_for'])}")


def print_warnings(answer: Answer) -> None:
    for warning in answer["warnings"]:
        print_stderr(f"warning: {warning}")
