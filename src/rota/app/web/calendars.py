"""Pages of calendars."""

from fastapi import APIRouter, Request, Response

from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, engine_of, history, page
from rota.frame.web.sessions import Viewer
from rota.reports import calendars as reports

router = APIRouter()

DATES_SHOWN = 24  # of the dates to come; the others are folded
NAVIGATION = [NavigationItem("/calendars", "Calendars", "c", "calendar", 2)]


@router.get("/calendars")
async def list_all(request: Request, caller: Viewer) -> Response:
    items = await reports_of(request, caller).read(reports.list_calendars, caller.org_id)
    return page(request, "calendars.html", items=items)


@router.get("/calendars/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    calendar = await reports_of(request, caller).read(reports.calendar, caller.org_id, key)
    changes = await history(request, caller, "calendars", calendar["id"])
    today = engine_of(request).clock.now().date().isoformat()
    coming = [day for day in calendar["dates"] if str(day["date"]) >= today]
    past = [day for day in calendar["dates"] if str(day["date"]) < today]
    return page(
        request, "calendar.html", calendar=calendar, changes=changes, coming=coming, past=past, shown=DATES_SHOWN
    )
