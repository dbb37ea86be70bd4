"""Pages of runs: the list; one run with its attempts, live log, input, output and explanation."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from rota.access.store import saved_views
from rota.app import artifact_previews
from rota.app.approvers import approver_of
from rota.app.web.run_logs import read_log, view_of
from rota.core.order import When
from rota.core.run_filter import RunFilter
from rota.core.states import State, Status
from rota.core.steps import OUTCOME_UNKNOWN, StepStatus, StepType
from rota.db.column_types import EPOCH
from rota.db.paging import Record
from rota.engine import artifacts
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web import columns, step_timeline
from rota.frame.web.drawings import Box, network
from rota.frame.web.forms import to_rfc3339
from rota.frame.web.pages import NavigationItem, engine_of, next_page_url, page, preferences, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import jobs as job_reports
from rota.reports import neighbours, relatives, run_search, why
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/runs", "Runs", "r", "play")]
ROWS = 50
FILTERS = (
    "schedule_id", "tag", "status", "reason", "kind", "target", "input", "error", "worker", "longer_than",
    "shorter_than", "since", "until", "within",
)  # fmt: skip
UNFINISHED = (Status.PENDING, Status.RUNNING)
FAILED_STEPS = (StepStatus.FAILED, StepStatus.TIMED_OUT)
UNKNOWN_OUTCOMES = tuple(status.value for status in OUTCOME_UNKNOWN)


@router.get("/runs")
async def list_all(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    db, now = reports_of(request, caller), engine.clock.now()
    query = query_values(request, *FILTERS, "cursor", "view")
    filter = read_filter(query, preferences(request).zone)
    reads_views, view = caller.reads("views"), None
    if query["view"] is not None and reads_views:
        view = await db.read(saved_views.find, caller.org_id, caller.user_id, query["view"])
        filter = RunFilter.read({**view["filter"], **filter.present()})
    values = filter.search_values(now)
    search = await run_search.search(db, caller.org_id, now, limit=ROWS, cursor=query["cursor"], **values)
    items, cursor = search.items, search.next_cursor
    items = await db.read(run_reports.with_names, items)
    names = await db.read(schedule_reports.names_of, [item["schedule_id"] for item in items if item["schedule_id"]])
    return page(
        request,
        "runs.html",
        items=items,
        next_page_url=next_page_url(request, cursor),
        names=names,
        query=query,
        filter=filter.present(),
        view=view,
        views=(await db.read(saved_views.list_views, caller.org_id, caller.user_id))[0] if reads_views else [],
        searched_until=search.searched_until,
        statuses=[item.value for item in Status],
        kinds=sorted(engine_of(request).runners),
        columns=columns.chosen(request, "runs"),
        all_columns=columns.RUNS,
    )


def read_filter(query: Mapping[str, str | None], zone: str) -> RunFilter:
    """Return the filter in the fields of the form; times are in the zone of the page. Raises Invalid."""
    fields: Record = {name: query[name] for name in FILTERS if query[name] is not None}
    if "input" in fields:
        fields["input"] = fields["input"].split()
    for name in ("since", "until"):
        if name in fields:
            fields[name] = to_rfc3339(fields[name], zone)
    return RunFilter.read(fields)


@router.get("/runs/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """Show a run by its id, or the latest attempt of a job by the job's id."""
    engine, db = engine_of(request), reports_of(request, caller)
    job = await db.read(job_reports.job_with_attempts, caller.org_id, key)
    run = next((attempt for attempt in job["attempts"] if attempt["id"] == key), job["attempts"][-1])
    explanation = await db.read(why.of_run, caller.org_id, job["id"], engine.clock.now(), engine.runners)
    run_id, schedule_id = run["id"], run["schedule_id"]
    shows_artifacts = run_id and caller.reads("artifacts")
    saved, _ = await db.read(artifacts.list_all, caller.org_id, run_id=run_id) if shows_artifacts else ([], None)
    template = request.app.state.trace_url
    now, suspended = engine.clock.now(), job["living"] is not None and run["status"] == Status.PAUSED
    steps = step_timeline.with_current(job["steps"], run, now)
    graph = await db.read(relatives.graph, caller.org_id, job["id"])
    return page(
        request,
        "run.html",
        run=run,
        around=await db.read(neighbours.neighbours, caller.org_id, run),
        preview_kind=artifact_previews.kind_of,
        job=job,
        why=explanation["sentences"],
        saved=saved,
        log=await read_log(request, caller, run_id, view_of(request)) if run_id else None,
        names=await db.read(schedule_reports.names_of, [schedule_id] if schedule_id else []),
        open=run["status"] in UNFINISHED,
        followed=run["status"] in UNFINISHED or suspended,
        ladder=ladder(job["living"], engine.settings.cancel_grace, now),
        steps=steps,
        axis=step_timeline.axis_of(steps, job["attempts"], now),
        decisions=await decisions(request, caller, job),
        family=await db.read(relatives.family, caller.org_id, job["parent_id"], job["children"]),
        failed_step=next((step["name"] for step in reversed(job["steps"]) if step["status"] in FAILED_STEPS), None),
        graph=graph,
        drawn_graph=None if graph is None else draw_graph(graph),
        trace_url=template.replace("{trace_id}", run["trace_id"]) if template and run["trace_id"] else None,
    )


async def decisions(request: Request, caller: Caller, job: Record) -> Record:
    """Return what a job waits for: approvals, with whether the caller may decide them, signals, and effects whose
    outcome a person knows."""
    if job["living"] is None:
        return {"approvals": [], "signals": [], "effects": []}
    waiting = [step for step in job["steps"] if step["status"] == StepStatus.WAITING]
    approvals = [step for step in waiting if step["type"] == StepType.APPROVAL]
    approver = await approver_of(engine_of(request).db, caller) if approvals else None
    stopped = job["living"]["state"] in (State.PARKED, State.RETRY)
    return {
        "approvals": [
            {**step, "job_id": job["id"], "may_decide": approver is not None and approver.may_decide(step["topic"])}
            for step in approvals
        ],
        "signals": [step for step in waiting if step["type"] == StepType.SIGNAL],
        "effects": [step for step in job["steps"] if stopped and step["status"] in UNKNOWN_OUTCOMES],
    }


def draw_graph(graph: relatives.JobGraph) -> Markup:
    """Draw jobs after jobs: a column for each distance from the job of the page, boxes coloured by status."""
    headings = {-1: "before", 0: "this job", 1: "after"}
    levels = []
    for level in sorted(set(graph.levels.values())):
        boxes = [
            Box(key, record["target_name"], record["status"], f"job {record['status']}", f"/runs/{key}")
            for key, record in graph.jobs.items()
            if graph.levels[key] == level
        ]
        levels.append((headings.get(level, ""), boxes))
    arrows = [(start, end, "" if when == When.SUCCESS else f"when-{when}") for start, end, when in graph.edges]
    return network(levels, arrows, f"{len(graph.jobs)} jobs that run after one another")


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
