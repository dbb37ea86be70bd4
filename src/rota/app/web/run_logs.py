"""The log of a run: a part of it on the page of the run, a page of its own, and what the script of both reads."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse, StreamingResponse

from rota.core.errors import Invalid
from rota.core.log_levels import LogLevel
from rota.core.states import Status
from rota.db import paging
from rota.db.paging import Record
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.pages import page, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import run_logs
from rota.reports import runs as run_reports
from rota.reports.run_logs import LogFilter

router = APIRouter()

PAGE_LINES = 500  # of a page without script
PART_LINES = 200  # that the script reads at once
PART_CHARACTERS = 120_000  # of a page or part; it ends earlier if its lines are longer
STREAMS = ("stdout", "stderr", "log", "system")
LEVELS = (("error", "errors"), ("warning", "warnings, errors"), ("info", "info and above"))
UNFINISHED = (Status.PENDING, Status.RUNNING)
FIELDS = ("q", "level", "stream", "only", "line", "from")


@dataclass(frozen=True, slots=True)
class LogView:
    """What a reader sees of a log, in the fields of its form."""

    q: str
    level: str
    stream: str
    only: bool  # lines without a match are left out
    line: int | None  # number of the line to show
    start: int | None  # place of the first line of the page

    @property
    def filter(self) -> LogFilter:
        text = self.q if self.only and self.q else None
        return LogFilter(LogLevel(self.level) if self.level else None, self.stream or None, text)

    @property
    def fields(self) -> dict[str, str]:
        """The filled fields of the form, for links."""
        fields = {"q": self.q, "level": self.level, "stream": self.stream, "only": "on" if self.only else ""}
        return {name: value for name, value in fields.items() if value}

    def link(self, **more: object) -> str:
        return "?" + urlencode({**self.fields, **more})


def view_of(request: Request) -> LogView:
    """Return the view that the query names. Raises Invalid."""
    query = query_values(request, *FIELDS)
    level, stream = query["level"] or "", query["stream"] or ""
    if level not in ("", *LogLevel):
        raise Invalid("level", level, f"is none of {', '.join(LogLevel)}")
    if stream not in ("", *STREAMS):
        raise Invalid("stream", stream, f"is none of {', '.join(STREAMS)}")
    # not stripped: a space may be searched for
    q = request.query_params.get("q", "").replace("\0", "") if query["q"] else ""
    return LogView(q, level, stream, query["only"] is not None, natural(query, "line"), natural(query, "from"))


def natural(query: Mapping[str, str | None], name: str) -> int | None:
    text = query[name]
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise Invalid(name, text, "is not a number of a line")
    return int(text)


async def read_log(request: Request, caller: Caller, run_id: str, view: LogView) -> Record:
    """Return the lines of a page: those around a line, from a place on, or the last ones; with the places of the pages
    before and after, and of the matches of a search."""
    db, wanted = reports_of(request, caller), view.filter
    total = await db.read(run_logs.count, run_id, wanted)
    target = None if view.line is None else await db.read(run_logs.place_of, run_id, view.line, wanted)
    matches: tuple[int, list[int]] = (0, [])
    if view.q:
        matches = await db.read(run_logs.search, run_id, view.q, wanted)
        if view.line is None and view.start is None and matches[1]:
            target = matches[1][0]
    at_end = target is None and view.start is None
    if target is not None:
        start = max(0, min(target - PAGE_LINES // 4, total - PAGE_LINES))
    else:
        start = max(0, total - PAGE_LINES) if view.start is None else min(view.start, total)
    lines = fitting(await db.read(run_logs.page, run_id, start, PAGE_LINES, wanted), from_end=at_end)
    if at_end:
        start = total - len(lines)
    return {
        "view": view,
        "lines": lines,
        "total": total,
        "start": start,
        "previous": max(0, start - PAGE_LINES) if start else None,
        "next": start + len(lines) if start + len(lines) < total else None,
        "last": max(0, total - PAGE_LINES),
        "match_count": matches[0],
        "matches_around": neighbours(matches[1], start if target is None else target),
        "shown": target,
        "levels": LEVELS,
        "streams": STREAMS,
    }


def neighbours(places: Sequence[int], place: int) -> tuple[int | None, int | None]:
    """Return the places of the matches before and after a place."""
    return (
        next((match for match in reversed(places) if match < place), None),
        next((match for match in places if match > place), None),
    )


def fitting(lines: list[Record], *, from_end: bool) -> list[Record]:
    """Return the first or last lines, at least one, that are together not longer than PART_CHARACTERS."""
    size, kept = 0, 0
    for line in reversed(lines) if from_end else lines:
        size += len(line["text"])
        if size > PART_CHARACTERS and kept:
            break
        kept += 1
    return lines[len(lines) - kept :] if from_end else lines[:kept]


@router.get("/runs/{run_id}/log")
async def read(request: Request, caller: Viewer, run_id: str) -> Response:
    """Show the log alone, in the full height of the window."""
    run = await reports_of(request, caller).read(run_reports.run, caller.org_id, run_id)
    log = await read_log(request, caller, run_id, view_of(request))
    return page(request, "run_log.html", run=run, log=log, followed=run["status"] in UNFINISHED)


@router.get("/runs/{run_id}/log/lines")
async def lines(request: Request, caller: Viewer, run_id: str) -> Response:
    """Return lines as HTML: from the place `from` on, or around the line `line`."""
    db, view = reports_of(request, caller), view_of(request)
    await db.read(run_reports.run, caller.org_id, run_id)  # another org's run is not found
    total = await db.read(run_logs.count, run_id, view.filter)
    start = min(view.start or 0, total)
    if view.line is not None:
        place = await db.read(run_logs.place_of, run_id, view.line, view.filter)
        start = max(0, min(place, total) - PART_LINES // 2)
    log_page = fitting(await db.read(run_logs.page, run_id, start, PART_LINES, view.filter), from_end=False)
    return page(request, "log_lines.html", log={"lines": log_page, "start": start, "total": total, "view": view})


@router.get("/runs/{run_id}/log/matches")
async def matches(request: Request, caller: Viewer, run_id: str) -> Response:
    """Return how many lines match a search, and the places of the first ones among the lines that are listed."""
    db, view = reports_of(request, caller), view_of(request)
    await db.read(run_reports.run, caller.org_id, run_id)
    if not view.q:
        return JSONResponse({"total": 0, "places": []})
    total, places = await db.read(run_logs.search, run_id, view.q, view.filter)
    return JSONResponse({"total": total, "places": places})


@router.get("/runs/{run_id}/log.txt")
async def download(request: Request, caller: Viewer, run_id: str) -> Response:
    """Download the complete log as text."""
    await reports_of(request, caller).read(run_reports.run, caller.org_id, run_id)
    headers = {"content-disposition": f'attachment; filename="{run_id}.log"'}
    return StreamingResponse(texts_of(request, caller, run_id), media_type="text/plain; charset=utf-8", headers=headers)


async def texts_of(request: Request, caller: Caller, run_id: str) -> AsyncIterator[str]:
    cursor: str | None = "0"
    while cursor is not None:
        lines, cursor = await reports_of(request, caller).read(
            run_reports.run_logs, caller.org_id, run_id, after=int(cursor), limit=paging.PAGE_ROWS_MAX
        )
        yield "".join(f"{line['at'].isoformat()} {line['stream']} {line['text']}\n" for line in lines)
