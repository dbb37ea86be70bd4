"""Crontabs of users, and /etc/crontab with its column of users, as entries of files. Pure.

Each line is reported. Settings of the crontab (PATH, SHELL, CRON_TZ, …) apply to the lines below them, as cron has it.
"""

import re
import shlex

from rota.app.importing.report import Imported, Outcome, ReportLine
from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_cron, parse_zone
from rota.db.paging import Record

SETTING = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z_]\w*))\s*=\s*(.*)$""")
MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
LINES_MAX = 5_000


def import_crontab(text: str, *, system: bool = False, timezone: str = "UTC", prefix: str = "cron") -> Imported:
    """Return tasks and schedules for the lines of a crontab. `system`: lines have a user, as in /etc/crontab;
    `timezone` is that of the machine. Raises Invalid for a text of too many lines."""
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise Invalid("file", len(lines), f"lines are too many; at most {LINES_MAX} are allowed")
    imported, settings = Imported(), dict[str, str]()
    zone = parse_zone(timezone)
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            imported.report.append(ReportLine(number, "no schedule", line))
            continue
        if match := SETTING.match(line):
            name, value = match[1] or match[2] or match[3], unquoted(match[4])
            outcome, note, zone = read_setting(name, value, settings, zone)
            imported.report.append(ReportLine(number, outcome, line, note))
            continue
        outcome, note = add_job(imported, stripped, settings, zone, prefix, system=system)
        imported.report.append(ReportLine(number, outcome, line, note))
    return imported


def read_setting(name: str, value: str, settings: dict[str, str], zone: str) -> tuple[Outcome, str, str]:
    """Apply a setting; returns what became of it, a note, and the time zone of the lines below."""
    if name in ("CRON_TZ", "TZ"):
        try:
            zone = parse_zone(value)
        except Invalid as error:
            return "not imported", f"{error.message}; lines below keep {zone}", zone
        if name == "TZ":
            settings[name] = value
            return "partly", "set for commands, and taken as the time zone of the lines below", zone
        return "imported", "time zone of the lines below", zone
    if name in ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"):
        return "not imported", "output is kept with each run instead of mailed; see alarms", zone
    if name in ("RANDOM_DELAY", "START_HOURS_RANGE"):
        return "not imported", f"{name} has no counterpart here; use jitter_seconds or a window", zone
    settings[name] = value
    return "imported", "set for the commands below", zone


def add_job(
    imported: Imported,
    line: str,
    settings: dict[str, str],
    zone: str,
    prefix: str,
    *,
    system: bool,
) -> tuple[Outcome, str]:
    """Add the task and schedule of a line; returns what became of it, and a note."""
    notes: list[str] = []
    fields = line.split(None, 1 if line.startswith("@") else 5)
    head = 1 if line.startswith("@") else 5
    if len(fields) <= head:
        return "not imported", "has no command"
    expression, rest = " ".join(fields[:head]), fields[head]
    user = None
    if system:
        user, *command_text = rest.split(None, 1)
        if not command_text:
            return "not imported", "has no command after the user"
        rest = command_text[0]
    if expression == "@reboot":
        return "not imported", "@reboot has no time: start it with the machine, or in a program of Rota"
    try:
        cron = parse_cron(MACROS.get(expression, expression)).expression
    except Invalid as error:
        return "not imported", error.message
    command, stdin = split_percent(rest.strip())
    if user is not None:
        notes.append(f"ran as {user}: it runs as the user of the worker")
    name = imported.name_for(program_of(command), prefix)
    shell = settings.get("SHELL", "/bin/sh")
    if shell not in ("/bin/sh", "sh"):
        command = f"{shell} -c {shlex.quote(command)}"
    env = {key: value for key, value in settings.items() if key not in ("SHELL", "HOME")}
    task: Record = {"name": name, "command": command}
    task |= {"env": env} if env else {}
    task |= {"cwd": settings["HOME"]} if "HOME" in settings else {}
    task |= {"stdin": stdin} if stdin is not None else {}
    # cron starts a job whether or not the one before has ended, and does not catch up
    policies = {"overlap": "allow", "misfire": "skip"}
    imported.tasks.append(task)
    imported.schedules.append(
        {"name": name, "target": name, "cron_expression": cron, "timezone": zone, **policies, "tags": ["crontab"]}
    )
    return ("partly" if notes else "imported"), "; ".join([f"schedule {name}", *notes])


def split_percent(text: str) -> tuple[str, str | None]:
    """Return the command and its standard input: a `%` ends the command, further ones are newlines, `\\%` is a
    percent sign."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    return parts[0].strip(), "\n".join(parts[1:]) + "\n" if len(parts) > 1 else None


def program_of(command: str) -> str:
    """Return the name of the first program of a command."""
    words = re.split(r"[\s;|&()]+", command)
    word = next((part for part in words if part and "=" not in part and part != "cd"), "job")
    return word.rpartition("/")[2]


def unquoted(text: str) -> str:
    value = text.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
