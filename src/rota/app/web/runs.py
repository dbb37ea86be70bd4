"""Pages of runs: the list; one run with its attempts, live log, input, output and explanation."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from rota.core.errors import NotFound
from rota.core.policy import choice
from rota.core.states import Status
from rota.core.timing.triggers import parse_instant
from rota.db import paging
from rota.db.column_types import EPOCH
from rota.db.paging import Record
from rota.engine import artifacts
from rota.frame.http.auth import Caller
from rota.frame.web.forms import to_rfc3339
from rota.frame.web.pages import NavigationItem, engine_of, next_page_url, page, preferences, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import jobs as job_reports
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import why

router = APIRouter()

NAVIGATION = [NavigationItem("/runs", "Runs", "r", "play")]
ROWS = 50
MAX_LOG_LINES = 500
UNFINISHED = (Status.PENDING, Status.RUNNING)


@router.get("/runs")
async def list_all(request: Request, caller: Viewer) -> Response:
    db, zone = engine_of(request).db, preferences(request).zone
    query = query_values(request, "schedule_id", "status", "reason", "kind", "target", "since", "until", "cursor")
    filters: Record = {name: query[name] for name in ("schedule_id", "reason", "kind", "target", "cursor")}
    filters["status"] = choice(Status, query["status"], "status") if query["status"] else None
    for name in ("since", "until"):
        text = query[name]
        filters[name] = parse_instant(to_rfc3339(text, zone), name) if text else None
    items, cursor = await db.read(run_reports.list_runs, caller.org_id, limit=ROWS, **filters)
    items = await db.read(run_reports.with_names, items)
    names = await db.read(schedule_reports.names_of, [item["schedule_id"] for item in items if item["schedule_id"]])
    return page(
        request,
        "runs.html",
        items=items,
        next_page_url=next_page_url(request, cursor),
        names=names,
        query=query,
        statuses=[item.value for item in Status],
        kinds=sorted(engine_of(request).runners),
    )


@router.get("/runs/{key}")
async def read(request: Request, caller: Viewer, key: str, q: str = "") -> Response:
    """Show a run by its id, or the latest attempt of a job by the job's id."""
    engine, db = engine_of(request), engine_of(request).db
    job = await db.read(job_reports.job_with_attempts, caller.org_id, key)
    run = next((attempt for attempt in job["attempts"] if attempt["id"] == key), job["attempts"][-1])
    explanation = await db.read(why.of_run, caller.org_id, job["id"], engine.clock.now(), engine.runners)
    run_id, schedule_id = run["id"], run["schedule_id"]
    shows_artifacts = run_id and caller.reads("artifacts")
    saved, _ = await db.read(artifacts.list_all, caller.org_id, run_id=run_id) if shows_artifacts else ([], None)
    template = request.app.state.trace_url
    return page(
        request,
        "run.html",
        run=run,
        job=job,
        why=explanation["sentences"],
        saved=saved,
        q=q,
        lines_most=MAX_LOG_LINES,
        lines=await db.read(run_reports.log_tail, run_id, MAX_LOG_LINES, q) if run_id else [],
        names=await db.read(schedule_reports.names_of, [schedule_id] if schedule_id else []),
        open=run["status"] in UNFINISHED,
        ladder=ladder(job["living"], engine.settings.cancel_grace, engine.clock.now()),
        trace_url=template.replace("{trace_id}", run["trace_id"]) if template and run["trace_id"] else None,
    )


@router.get("/runs/{run_id}/log.txt")
async def download(request: Request, caller: Viewer, run_id: str) -> Response:
    """Download the complete log as text."""
    db = engine_of(request).db
    if run_id not in [
        attempt["id"] for attempt in (await db.read(job_reports.job_with_attempts, caller.org_id, run_id))["attempts"]
    ]:
        raise NotFound(f"run {run_id!r} not found")
    headers = {"content-disposition": f'attachment; filename="{run_id}.log"'}
    return StreamingResponse(lines_of(request, caller, run_id), media_type="text/plain; charset=utf-8", headers=headers)


async def lines_of(request: Request, caller: Caller, run_id: str) -> AsyncIterator[str]:
    cursor: str | None = "0"
    while cursor is not None:
        lines, cursor = await engine_of(request).db.read(
            run_reports.run_logs, caller.org_id, run_id, after=int(cursor), limit=paging.PAGE_ROWS_MAX
        )
        yield "".join(f"{line['at'].isoformat()} {line['stream']} {line['text']}\n" for line in lines)


def ladder(living: Record | None, grace: timedelta, now: datetime) -> list[Record] | None:
    """Return the steps of a cancellation: requested, forwarded to the worker, killed after the grace. None if not
    requested."""
    if living is None or living["cancel_requested_at"] is None:
        return None
    since = living["cancel_requested_at"] or EPOCH
    return [
        {"step": "cancellation requested", "at": since, "done": True},
        {"step": "forwarded to the running job", "at": since, "done": living["run_id"] is not None},
        {"step": "killed if still running", "at": since + grace, "done": now > since + grace},
        {"step": "ended", "at": None, "done": False},
    ]
