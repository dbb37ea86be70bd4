"""Page that compares two runs, on request with their logs."""

import asyncio

from fastapi import APIRouter, Request, Response

from rota.core import run_diff
from rota.core.errors import Invalid, NotFound
from rota.db.paging import Record
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.log_text import plain_text
from rota.frame.web.pages import page, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import jobs as job_reports
from rota.reports import run_logs
from rota.reports import schedules as schedule_reports
from rota.reports.run_logs import LogFilter

router = APIRouter()

SECTIONS = ("run", "durations", "input", "output", "error")


@router.get("/runs/compare")
async def compare(request: Request, caller: Viewer) -> Response:
    """Compare the runs `a` and `b`, by their ids or those of their jobs."""
    query = query_values(request, "a", "b", "logs")
    keys = [query[name] for name in ("a", "b")]
    if keys[0] is None or keys[1] is None:
        return page(request, "run_compare.html", runs=None, query=query)
    a, b = [await find(request, caller, key or "", name) for key, name in zip(keys, "ab", strict=True)]
    differences = run_diff.compare(a, b)
    logs = None
    if query["logs"]:
        texts = [await log_of(request, caller, run) for run in (a, b)]
        logs = await asyncio.to_thread(run_diff.log_diff, *texts)
    names = await reports_of(request, caller).read(
        schedule_reports.names_of, [run["schedule_id"] for run in (a, b) if run["schedule_id"]]
    )
    return page(
        request,
        "run_compare.html",
        runs=(a, b),
        query=query,
        names=names,
        sections=[(name, [item for item in differences if item.section == name]) for name in SECTIONS],
        differing=sum(item.differs for item in differences),
        logs=logs,
    )


async def find(request: Request, caller: Caller, key: str, name: str) -> Record:
    """Return a run by its id, or the last attempt of a job. Raises Invalid if there is none."""
    try:
        job = await reports_of(request, caller).read(job_reports.job_with_attempts, caller.org_id, key)
    except NotFound as error:
        raise Invalid(name, key, "is the id of no run") from error
    return next((attempt for attempt in job["attempts"] if attempt["id"] == key), job["attempts"][-1])


async def log_of(request: Request, caller: Caller, run: Record) -> list[str]:
    """Return the last lines of a run's log without colours."""
    if run["id"] is None:
        return []
    db, everything = reports_of(request, caller), LogFilter()
    total = await db.read(run_logs.count, run["id"], everything)
    start = max(0, total - run_diff.LOG_LINES_MAX)
    lines = await db.read(run_logs.page, run["id"], start, run_diff.LOG_LINES_MAX, everything)
    return [plain_text(line["text"]) for line in lines]
