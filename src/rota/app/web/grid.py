"""Grid page: schedules by their last slots, pipelines by their last runs, or the steps of a durable task by its last
jobs. Each cell links to its run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fastapi import APIRouter, Request, Response

from rota.core.states import shown_status
from rota.db.paging import Record
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.axes import percentile
from rota.frame.web.charts import slot_words
from rota.frame.web.pages import (
    NavigationItem,
    TimeFormat,
    engine_of,
    next_page_url,
    page,
    preferences,
    query_values,
    span,
)
from rota.frame.web.sessions import Viewer
from rota.kinds.pipelines import store as pipelines
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports
from rota.reports import steps as step_reports

router = APIRouter()

NAVIGATION: list[NavigationItem] = []
ROWS = 25
CELLS = 40  # of a row
JOBS = 25  # of a task, with their steps
OF = {"schedules": "slots", "pipelines": "runs", "steps": "runs"}  # what rows are, and columns
GOOD, BAD = ("success", "done"), ("failed", "crashed", "missed", "timed_out")


@dataclass(frozen=True, slots=True)
class Cell:
    status: str
    words: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    href: str
    cells: Sequence[Cell | None]  # the newest is the last; None: nothing there
    seconds: Sequence[float] = ()

    @property
    def failed(self) -> int:
        return sum(cell.status in BAD for cell in self.cells if cell)

    @property
    def ended(self) -> int:
        return sum(cell.status in (*GOOD, *BAD) for cell in self.cells if cell)

    def percentile(self, share: float) -> str:
        return span(percentile(self.seconds, share)) if self.seconds else ""


@router.get("/grid")
async def grid(request: Request, caller: Viewer) -> Response:
    query = query_values(request, "of", "name", "kind", "tag", "namespace", "task", "cursor")
    times = TimeFormat(preferences(request), engine_of(request).clock.now())
    of = query["of"] if query["of"] in OF else "steps" if query["task"] else "schedules"
    read_rows = {"schedules": schedule_rows, "pipelines": pipeline_rows, "steps": step_rows}[of]
    may_read = caller.reads("runs") and (of == "steps" or caller.reads(of))
    rows, cursor = await read_rows(request, caller, query, times) if may_read else ([], None)
    return page(
        request,
        "grid.html",
        of=of,
        columns_are=OF[of],
        rows=padded(rows),
        next_page_url=next_page_url(request, cursor),
        query=query,
        kinds=sorted(engine_of(request).runners),
    )


async def schedule_rows(
    request: Request, caller: Caller, query: Mapping[str, str | None], times: TimeFormat
) -> tuple[list[Row], str | None]:
    db = reports_of(request, caller)
    items, cursor = await db.read(
        schedule_reports.list_schedules, caller.org_id, limit=ROWS, cursor=query["cursor"],
        name=query["name"], kind=query["kind"], tag=query["tag"],
    )  # fmt: skip
    strips = await db.read(slot_reports.strips, [item["id"] for item in items], CELLS)
    rows = []
    for item in items:
        cells = [
            Cell(slot["status"] or "none", slot_words(slot, times, item["timezone"]), run_href(slot["run_id"]))
            for slot in strips[item["id"]]
        ]
        rows.append(Row(item["name"], f"/schedules/{item['id']}", cells))
    return rows, cursor


async def pipeline_rows(
    request: Request, caller: Caller, query: Mapping[str, str | None], times: TimeFormat
) -> tuple[list[Row], str | None]:
    db = reports_of(request, caller)
    items, cursor = await db.read(
        pipelines.list_pipelines, caller.org_id, limit=ROWS, cursor=query["cursor"], namespace=query["namespace"]
    )
    rows = []
    for item in items:
        runs = (await db.read(pipelines.last_runs, caller.org_id, item["path"], CELLS))[::-1]
        cells = [run_cell(run, times) for run in runs]
        rows.append(Row(item["path"], f"/pipelines/{item['path']}", cells, durations(runs)))
    return rows, cursor


async def step_rows(
    request: Request, caller: Caller, query: Mapping[str, str | None], times: TimeFormat
) -> tuple[list[Row], str | None]:
    """Return a row for each step of a task, in the order of the calls, and first one for its runs."""
    db, task = reports_of(request, caller), query["task"]
    if task is None:
        return [], None
    wanted = {"kind": "task", "target": task, "last_only": True}
    runs, cursor = await db.read(run_reports.list_runs, caller.org_id, limit=JOBS, cursor=query["cursor"], **wanted)
    runs = runs[::-1]
    jobs = [run["job_id"] for run in runs]
    steps = await db.read(step_reports.of_jobs, caller.org_id, jobs)
    rows = [Row(task, f"/runs?kind=task&target={task}", [run_cell(run, times) for run in runs], durations(runs))]
    for name, by_job in steps.items():
        cells = [step_cell(by_job[job], job, times) if job in by_job else None for job in jobs]
        ended = [step for step in by_job.values() if step["finished_at"]]
        took = [(step["finished_at"] - step["started_at"]).total_seconds() for step in ended]
        rows.append(Row(name, "", cells, took))
    return rows, cursor


def run_cell(run: Record, times: TimeFormat) -> Cell:
    status = shown_status(run)
    took = durations([run])
    words = f"{times.at(run['started_at'] or run['queued_at'])}: {status}{', ' + span(took[0]) if took else ''}"
    return Cell(status, words, run_href(run["id"] or run["job_id"]))


def step_cell(step: Record, job: str, times: TimeFormat) -> Cell:
    status = str(step["status"])
    end: datetime | None = step["finished_at"]
    took = f", {span((end - step['started_at']).total_seconds())}" if end else ""
    words = f"{step['name']}, {times.at(step['started_at'])}: {status.replace('_', ' ')}{took}"
    return Cell(status, words, run_href(job))


def durations(runs: Sequence[Record]) -> list[float]:
    ended = [run for run in runs if run["started_at"] and run["finished_at"]]
    return [(run["finished_at"] - run["started_at"]).total_seconds() for run in ended]


def run_href(key: str | None) -> str:
    return f"/runs/{key}" if key else ""


def padded(rows: Sequence[Row]) -> list[Row]:
    """Return rows of the same length: the newest cells are below each other."""
    most = max((len(row.cells) for row in rows), default=0)
    return [replace(row, cells=[*[None] * (most - len(row.cells)), *row.cells]) for row in rows]
