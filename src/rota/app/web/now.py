"""Start page: what needs attention, running and next jobs, recent results; and display preferences."""

from datetime import timedelta
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.core.timing.triggers import parse_zone
from rota.engine import dashboard
from rota.engine.failing import FAILING_MOST
from rota.engine.overview import COUNT_MAX, DAY, LIST_ROWS, overview
from rota.frame.web.pages import NavigationItem, engine_of, page, safe_redirect_path
from rota.frame.web.sessions import SignedIn, Viewer, read_form, set_cookie
from rota.kinds.hosts.store import hosts

router = APIRouter()

NAVIGATION = [NavigationItem("/", "Now", "n", "pulse")]
YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)


@router.get("/")
async def now(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    at, kinds, db = engine.clock.now(), sorted(engine.runners), engine.db
    shown = await db.read(overview, caller.org_id, kinds, at, all_orgs=caller.instance_admin)
    shown["offline"] = await db.read(hosts.offline, caller.org_id, at, LIST_ROWS)
    grace = engine.settings.misfire_grace
    ids = [run["schedule_id"] for run in shown["running"] if run["schedule_id"]]
    for name in ("running", "parked"):
        shown[name] = await db.read(dashboard.with_names, shown[name])
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
        late=await db.read(dashboard.late, caller.org_id, kinds, at - grace, LIST_ROWS),
        paused=await db.read(dashboard.paused, caller.org_id, LIST_ROWS),
        missed=await db.read(dashboard.missed, caller.org_id, at - DAY, LIST_ROWS),
        lateness=await db.read(dashboard.lateness, caller.org_id),
        usual=await db.read(dashboard.usual, ids),
    )


@router.post("/preferences")
async def prefer(request: Request, _: SignedIn) -> Response:
    """Store theme and time zone in cookies."""
    form = await read_form(request)
    response = RedirectResponse(safe_redirect_path(form.get("then", "")), 303)
    if "theme" in form:
        set_cookie(request, response, "rota_theme", form["theme"][:5], YEAR)
    if "time" in form:
        time = form["time"] if form["time"] == "schedule" else parse_zone(form["time"], "time")
        set_cookie(request, response, "rota_time", quote(time, safe=""), YEAR)
    return response
