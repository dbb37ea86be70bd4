"""Runs, and everything about one: its attempts, its log as it is written, what it took and gave, and why."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from rota.core.errors import NotFound
from rota.core.policy import choice
from rota.core.states import Status
from rota.core.timing.triggers import parse_instant
from rota.db import paging
from rota.db.column_types import EPOCH
from rota.engine import artifacts, dashboard, run_reports, why
from rota.frame.http.auth import Caller
from rota.frame.web.forms import moment
from rota.frame.web.pages import Place, asked, engine_of, older, page, preferences
from rota.frame.web.sessions import Viewer

router = APIRouter()

PLACES = [Place("/runs", "Runs", "r", "play")]
ROWS = 50
LINES = 500  # of a log that a page shows
OPEN = (Status.PENDING, Status.RUNNING)


@router.get("/runs")
async def list_all(request: Request, caller: Viewer) -> Response:
    db, zone = engine_of(request).db, preferences(request).zone
    given = asked(request, "schedule_id", "status", "reason", "kind", "target", "since", "until", "cursor")
    wanted: dict[str, Any] = {name: given[name] for name in ("schedule_id", "reason", "kind", "target", "cursor")}
    wanted["status"] = choice(Status, given["status"], "status") if given["status"] else None
    for name in ("since", "until"):
        text = given[name]
        wanted[name] = parse_instant(moment(text, zone), name) if text else None
    items, cursor = await db.read(run_reports.list_runs, caller.org_id, limit=ROWS, **wanted)
    items = await db.read(dashboard.with_names, items)
    names = await db.read(dashboard.names_of, [one["schedule_id"] for one in items if one["schedule_id"]])
    return page(
        request, "runs.html", items=items, older=older(request, cursor), names=names, given=given,
        statuses=[one.value for one in Status], kinds=sorted(engine_of(request).runners),
    )  # fmt: skip


@router.get("/runs/{key}")
async def read(request: Request, caller: Viewer, key: str, q: str = "") -> Response:
    """One run, by its id or that of its job: then the attempt that stands."""
    engine, db = engine_of(request), engine_of(request).db
    job = await db.read(dashboard.job_of, caller.org_id, key)
    one = next((run for run in job["attempts"] if run["id"] == key), job["attempts"][-1])
    told = await db.read(why.of_run, caller.org_id, job["id"], engine.clock.now(), engine.runners)
    run_id, schedule_id = one["id"], one["schedule_id"]
    shows_artifacts = run_id and caller.reads("artifacts")
    saved, _ = await db.read(artifacts.list_all, caller.org_id, run_id=run_id) if shows_artifacts else ([], None)
    template = request.app.state.trace_url
    return page(
        request, "run.html", one=one, job=job, why=told["sentences"], saved=saved, q=q, lines_most=LINES,
        lines=await db.read(dashboard.log_tail, run_id, LINES, q) if run_id else [],
        names=await db.read(dashboard.names_of, [schedule_id] if schedule_id else []),
        open=one["status"] in OPEN, ladder=ladder(job["living"], engine.settings.cancel_grace, engine.clock.now()),
        trace_url=template.replace("{trace_id}", one["trace_id"]) if template and one["trace_id"] else None,
    )  # fmt: skip


@router.get("/runs/{run_id}/log.txt")
async def download(request: Request, caller: Viewer, run_id: str) -> Response:
    """The whole log as text."""
    db = engine_of(request).db
    if run_id not in [one["id"] for one in (await db.read(dashboard.job_of, caller.org_id, run_id))["attempts"]]:
        raise NotFound(f"run {run_id!r} not found")
    headers = {"content-disposition": f'attachment; filename="{run_id}.log"'}
    return StreamingResponse(lines_of(request, caller, run_id), media_type="text/plain; charset=utf-8", headers=headers)


async def lines_of(request: Request, caller: Caller, run_id: str) -> Any:
    cursor: str | None = "0"
    while cursor is not None:
        found, cursor = await engine_of(request).db.read(
            run_reports.run_logs, caller.org_id, run_id, after=int(cursor), limit=paging.PAGE_ROWS_MAX
        )
        yield "".join(f"{one['at'].isoformat()} {one['stream']} {one['text']}\n" for one in found)


def ladder(living: dict[str, Any] | None, grace: Any, now: Any) -> list[dict[str, Any]] | None:
    """How far the stopping of a job is: asked, told to its work, and killed after the grace. None when nobody asked."""
    if living is None or living["cancel_requested_at"] is None:
        return None
    since = living["cancel_requested_at"] or EPOCH
    return [
        {"step": "asked to stop", "at": since, "done": True},
        {"step": "its work was asked to stop", "at": since, "done": living["run_id"] is not None},
        {"step": "killed, if it has not stopped by then", "at": since + grace, "done": now > since + grace},
        {"step": "gone", "at": None, "done": False},
    ]
