"""`rota simulate`."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from rota.frame.cli.connection import Answer, Exit, fail, print_stderr
from rota.frame.cli.options import set_fields
from rota.frame.cli.output import local_time, print_data, print_table
from rota.frame.cli.times import future, future_option

DAY = timedelta(days=1)


def simulate(
    ctx: typer.Context,
    since: Annotated[str, future_option("--from", help="start: now, 2h (from now), 2026-12-24, …")] = "now",
    until: Annotated[str, future_option("--to", help="end: 1d (from now), 2026-12-25, …")] = "1d",
    outage: Annotated[
        list[str] | None,
        typer.Option(metavar="FROM/TO", help="no scheduler and no worker runs then: 02:00/05:00; repeatable"),
    ] = None,
    durations: Annotated[
        str | None, typer.Option(help="duration of runs from their history: p50, p95 or max; default: p50")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="number of workers; default: those that are alive")] = None,
) -> None:
    """Simulate the schedules over a time range: what would run, wait, be skipped or missed, and the load per hour."""
    outages = [outage_of(text) for text in outage or ()] or None
    body = {"from": since, "to": until, **set_fields(outages=outages, durations=durations, workers=workers)}
    answer = ctx.obj.post("/simulate", body)
    if print_data(ctx.obj, answer):
        return
    print_table(
        ("schedule", "slot", "n", "verdict", "why", "starts", "ends"),
        (
            [
                slot["schedule"],
                local_time(slot["slot"]),
                str(slot["count"] or "many"),
                slot["verdict"] or "waiting",
                slot["reason"] or "",
                local_time(slot["starts_at"]) if slot["starts_at"] else "",
                local_time(slot["finishes_at"]) if slot["finishes_at"] else "",
            ]
            for slot in answer["slots"]
        ),
    )
    print()
    print_table(
        ("hour", "queue", "host", "runs", "seconds"),
        (
            [local_time(row["hour"]), row["queue"], row["host"] or "", str(row["runs"]), f"{row['seconds']:.0f}"]
            for row in answer["load"]
        ),
    )
    totals = answer["totals"]
    print_stderr(
        f"{totals['ran']} run, {totals['skipped']} skipped, {totals['missed']} missed, "
        f"{totals['coalesced']} coalesced, {totals['waiting']} waiting at the end; {totals['seconds']:.0f} s of runs, "
        f"{totals['credits']} credits, longest wait {totals['longest_wait_seconds']:.0f} s"
    )
    if answer["unknown_durations"]:
        print_stderr(f"no run of {', '.join(answer['unknown_durations'][:5])} has succeeded yet: 60 s are assumed")
    if answer["truncated"] and answer["until"] == answer["to"]:
        print_stderr("the lists are cut; the totals are those of the whole time")
    elif answer["truncated"]:
        print_stderr(f"not all is shown: simulated until {answer['until']}; choose a shorter time")


def outage_of(text: str) -> Answer:
    """Return an outage. A time of day is its next one, the end the next one after the beginning."""
    start, separator, end = text.partition("/")
    if not separator:
        fail(f"--outage {text} has no end; use FROM/TO, such as 02:00/05:00", Exit.USAGE)
    first, last = future(start), future(end)
    while datetime.fromisoformat(last) <= datetime.fromisoformat(first) and ":" in end and len(end) <= 8:
        last = (datetime.fromisoformat(last) + DAY).isoformat()
    return {"from": first, "to": last}
