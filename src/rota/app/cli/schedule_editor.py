"""`rota schedule edit` without options: the schedule as JSON in an editor."""

import json
import sys
from pathlib import Path

import typer

from rota.frame.cli.connection import Answer, ApiRefusal, Connection, exit_refused, fail, item_path, print_stderr

WRITABLE = (
    "name", "description", "target", "input", "schedule_type", "cron_expression", "interval_seconds", "anchor",
    "run_at", "rrule", "dst_gap", "dst_repeat", "calendar", "on_holiday",
    "timezone", "window_start", "window_end", "starts_at", "ends_at", "jitter_seconds", "max_runs", "misfire",
    "catch_up_limit", "catch_up_spread_hours", "catch_up_approval_slots",
    "overlap", "start_deadline_seconds", "timeout_seconds", "retry", "priority", "queue", "after",
    "when", "tags", "enabled", "grant_id", "keep_runs_days", "pause_after_failures",
)  # fmt: skip


def edit_text(connection: Connection, before: Answer) -> Answer:
    """Open a schedule in the editor and save the changes; on a refusal, offer to edit again. Returns the schedule."""
    text, path = editable_json(before), item_path("schedules", before["id"])
    while True:
        text = ask_editor(text)
        try:
            changes = changes_of(before, text)
            if not changes:
                print_stderr("no changes")
                return before
            after: Answer = connection.try_call("PATCH", path, changes, if_match=before["revision"])
            return after
        except ValueError as error:
            refusal = ApiRefusal(422, {"detail": f"not a JSON object: {error}"})
        except ApiRefusal as error:
            refusal = error
        try:
            exit_refused(refusal)
        except typer.Exit:
            if not (sys.stdin.isatty() and typer.confirm("Edit again?", default=True, err=True)):
                raise
        if refusal.status == 412:  # reload the schedule, with the edits on top
            before = connection.get(path)
            text = editable_json({**before, **changes})


def editable_json(schedule: Answer) -> str:
    return json.dumps({field: schedule[field] for field in WRITABLE}, indent=2, ensure_ascii=False) + "\n"


def changes_of(before: Answer, text: str) -> Answer:
    """Return the edited fields. A removed field is None: reset to its default. Raises ValueError if not an object."""
    after = json.loads(text)
    if not isinstance(after, dict):
        raise ValueError(f"it is a {type(after).__name__}")
    known = {field: before[field] for field in WRITABLE}
    return {field: after.get(field) for field in {**known, **after} if after.get(field) != known.get(field)}


def ask_editor(text: str) -> str:
    import os
    import shlex
    import subprocess
    import tempfile

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "schedule.json"
        file.write_text(text)
        try:
            subprocess.run([*shlex.split(command), str(file)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            fail(f"the editor failed: {error}; set EDITOR to choose another")
        return file.read_text()
