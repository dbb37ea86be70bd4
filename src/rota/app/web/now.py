"""Start page: what needs attention, running and next jobs, recent results; and display preferences."""

from datetime import timedelta
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.app.approvers import approver_of
from rota.core.timing.triggers import parse_zone
from rota.frame.http.reports import reports_of
from rota.frame.web import columns
from rota.frame.web.pages import NavigationItem, engine_of, page, safe_redirect_path
from rota.frame.web.sessions import SignedIn, Viewer, read_form, set_cookie
from rota.kinds.alarms.store import rows as alarm_rows
from rota.kinds.hosts import reports as host_reports
from rota.reports.failing import FAILING_MOST
from rota.reports.overview import COUNT_MAX, LIST_ROWS, overview

router = APIRouter()

NAVIGATION = [NavigationItem("/", "Now", "n", "pulse")]
YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)


@router.get("/")
async def now(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    at, kinds, db = engine.clock.now(), sorted(engine.runners), reports_of(request, caller)
    grace = engine.settings.misfire_grace
    shown = await db.read(overview, caller.org_id, kinds, at, grace=grace, all_orgs=caller.instance_admin)
    shown["offline"] = await db.read(host_reports.offline, caller.org_id, at, LIST_ROWS)
    if shown["approvals"] or shown["catch_ups"]:
        approver = await approver_of(engine.db, caller)
        shown["may_decide_catch_ups"] = approver.may_decide_catch_ups
        for approval in shown["approvals"]:
            approval["may_decide"] = approver.may_decide(approval["topic"])
    shown["alarms"] = await db.read(alarm_rows.open_events, caller.org_id, LIST_ROWS)
    acknowledged = [row for row in shown["failing"] if row["acknowledged"]]
    shown["failing"] = [row for row in shown["failing"] if not row["acknowledged"]]
    return page(
        request,
        "now.html",
        **shown,
        acknowledged=acknowledged,
        few=LIST_ROWS,
        most=COUNT_MAX,
        soon=at + HOUR,
        failing_most=FAILING_MOST,
    )


@router.post("/preferences")
async def prefer(request: Request, _: SignedIn) -> Response:
    """Store theme, time zone, density of lists and their columns in cookies."""
    form = await read_form(request)
    response = RedirectResponse(safe_redirect_path(form.get("then", "")), 303)
    if "theme" in form:
        set_cookie(request, response, "rota_theme", form["theme"][:5], YEAR)
    if form.get("density") in ("", "comfortable"):
        set_cookie(request, response, "rota_density", form["density"], YEAR)
    name = form.get("list", "")
    if name in columns.LISTS:
        set_cookie(request, response, columns.COOKIE + name, columns.cookie_value(name, form), YEAR)
    if "time" in form:
        time = form["time"] if form["time"] == "schedule" else parse_zone(form["time"], "time")
        set_cookie(request, response, "rota_time", quote(time, safe=""), YEAR)
    return response
