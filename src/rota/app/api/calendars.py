"""Routes of calendars: named sets of holidays that schedules follow."""

from fastapi import APIRouter, Request, Response

from rota.app.api import models
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.reports import calendars as reports

router = APIRouter(prefix="/calendars", tags=["calendars"], route_class=BodyRoute)


@router.post("", status_code=201, response_model=models.Calendar)
async def create(request: Request, caller: Operator, body: models.CalendarBody) -> Response:
    """Create a calendar from one source: `holidays` (a country such as NO or DE-BY), `exchange` (XOSL), `ical` (text of
    a file) or `dates`. Its dates are resolved and stored."""
    engine = engine_of(request)
    calendar_id = await engine.add_calendar(caller.org_id, body.present())
    made = await engine.db.read(reports.calendar, caller.org_id, calendar_id)
    return answer(made, 201, {"location": f"/api/v1/calendars/{calendar_id}"})


@router.get("", response_model=page_of(models.CalendarSummary))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Calendars by name, without their dates."""
    return answer_slice(await reports_of(request, caller).read(reports.list_calendars, caller.org_id), limit, cursor)


@router.get("/{key}", response_model=models.Calendar)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One calendar, by its name or id, with its dates and up to 100 of the schedules that follow it."""
    return answer(await engine_of(request).db.read(reports.calendar, caller.org_id, key))


@router.patch("/{key}", response_model=models.Calendar)
async def edit(request: Request, caller: Operator, key: str, body: models.CalendarChanges) -> Response:
    """Change a calendar; absent fields stay. Its dates are resolved again, also with an empty body, and the next slots
    of its schedules are planned anew."""
    engine = engine_of(request)
    calendar_id = await engine.edit_calendar(caller.org_id, key, body.present())
    return answer(await engine.db.read(reports.calendar, caller.org_id, calendar_id))


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Delete a calendar; 409 if schedules follow it."""
    await engine_of(request).delete_calendar(caller.org_id, key)
    return Response(status_code=204)
