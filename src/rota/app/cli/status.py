"""`rota status`: server, workers, queues, schedules, what needs attention, failures and due slots, on one screen."""

from collections.abc import Iterator, Sequence

import typer

from rota.frame.cli.connection import Answer, Connection, Exit
from rota.frame.cli.output import print_data, relative_time
from rota.frame.cli.terminal import visible

COLUMNS, LABEL = 80, 10
ROWS = 3  # of each list; with the headings and `ATTENTION_ROWS` at most 24
ATTENTION_ROWS = 4


def status(ctx: typer.Context) -> None:
    """Show the server, workers, queues, schedules, what needs attention, failures and due slots on one screen. Exit
    code 1 if something is failing or no worker is alive."""
    connection: Connection = ctx.obj
    answer = connection.get("/status")
    if not print_data(connection, answer):
        for line in screen(answer):
            print(fitted(visible(line)))
    if not answer["ok"]:
        raise typer.Exit(Exit.FAILED)


def screen(answer: Answer) -> Iterator[str]:
    """Yield at most 24 lines."""
    state = "ok" if answer["ok"] else "needs attention"
    database = f"{answer['database']} {answer['database_version'].split()[0]}"
    yield f"Rota {answer['version']} on {database}, schema {answer['schema_revision']}: {state}"
    freeze = answer["freeze"]
    if freeze["frozen"]:
        yield f"{'frozen':<{LABEL}}since {relative_time(freeze['frozen_at'])}: {freeze['reason'] or 'no reason given'}"
    replica = answer["reports_replica"]
    if replica is not None:
        yield f"{'replica':<{LABEL}}{of_replica(replica)}"
    yield from of_workers(answer)
    yield from of_queues(answer)
    counts = answer["schedules"]
    numbers = ", ".join(f"{counts[name]} {name}" for name in ("enabled", "paused", "broken", "late"))
    yield f"{'schedules':<{LABEL}}{numbers}"
    attention = [
        f"{row['what']} {row['name']}: {row['detail']}" + (f", {relative_time(row['since'])}" if row["since"] else "")
        for row in answer["attention"]
    ]
    yield from section("attention", attention, ATTENTION_ROWS - freeze["frozen"] - (replica is not None))
    yield from section("failing", [failure(row) for row in answer["failing"]], ROWS)
    yield f"{'due next':<{LABEL}}{'' if answer['due'] else 'nothing'}".rstrip()
    for row in answer["due"][:ROWS]:
        yield f"  {relative_time(row['due_at'])}: {row['schedule']}"


def of_replica(replica: Answer) -> str:
    if replica["problem"] is not None:
        return f"not used, reports are read from the primary: {replica['problem']}"
    return f"reports are {span(replica['lag_seconds'])} behind"


def of_workers(answer: Answer) -> Iterator[str]:
    workers, late = answer["workers"], answer["lateness_seconds"]
    capacity = sum(worker["concurrency"] for worker in workers)
    lateness = "" if late is None else f", slots start within {span(late)}"
    yield f"{'workers':<{LABEL}}{len(workers)} alive, running {answer['running']} of {capacity}{lateness}"
    rows = [
        f"{worker['id'][-8:]} {worker['running']}/{worker['concurrency']} seen {relative_time(worker['renewed_at'])}, "
        f"{','.join(worker['queues'] or ['all queues'])}: {','.join(worker['kinds'])}"
        for worker in workers
    ]
    yield from listed(rows, ROWS)


def of_queues(answer: Answer) -> Iterator[str]:
    queues = answer["queues"]
    ready = sum(queue["depth"]["ready"] for queue in queues)
    oldest = min((queue["oldest_ready_at"] for queue in queues if queue["oldest_ready_at"]), default=None)
    yield f"{'queues':<{LABEL}}{ready} jobs ready" + ("" if oldest is None else f", oldest {relative_time(oldest)}")
    deepest = sorted(queues, key=lambda queue: (-queue["depth"]["ready"], queue["name"]))
    rows = [
        f"{queue['name']}: {queue['depth']['ready']} ready, {queue['depth']['running']} running"
        + (f" of {queue['max_running']}" if queue["max_running"] is not None else "")
        + (", paused" if queue["paused"] else "")
        for queue in deepest
    ]
    yield from listed(rows, ROWS)


def failure(row: Answer) -> str:
    from rota.core.explain import error_text

    name, by = row["schedule"] or row["target_name"], row["acknowledged"]
    error = error_text(row["error"] or {}).partition("\n")[0]
    note = f" (acknowledged by {by['by']})" if by else ""
    return f"{name}: {row['times']} failed, last {relative_time(row['finished_at'])}{note}: {error}"


def section(label: str, rows: Sequence[str], most: int) -> Iterator[str]:
    """Yield the rows after a label with their number; the label alone says that there are none."""
    yield f"{label:<{LABEL}}{len(rows) or 'nothing'}"
    yield from listed(rows, most)


def listed(rows: Sequence[str], most: int) -> Iterator[str]:
    shown = rows if len(rows) <= most else [*rows[: most - 1], f"and {len(rows) - most + 1} more"]
    for row in shown:
        yield f"  {row}"


def span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def fitted(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"
