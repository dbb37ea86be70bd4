"""The first page: what needs attention, what runs, what comes, what was. And how each of us wants to see pages."""

from datetime import timedelta
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.core.timing.triggers import parse_zone
from rota.engine import dashboard
from rota.engine.failing import FAILING_MOST
from rota.engine.overview import COUNT_MAX, DAY, LIST_ROWS, overview
from rota.frame.web.pages import Place, engine_of, page, safe_redirect_path
from rota.frame.web.sessions import SignedIn, Viewer, read_form, set_cookie
from rota.kinds.hosts.store import hosts

router = APIRouter()

PLACES = [Place("/", "Now", "n", "pulse")]
YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)


@router.get("/")
async def now(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    at, kinds, db = engine.clock.now(), sorted(engine.runners), engine.db
    found = await db.read(overview, caller.org_id, kinds, at, all_orgs=caller.instance_admin)
    found["offline"] = await db.read(hosts.offline, caller.org_id, at, LIST_ROWS)
    grace = engine.settings.misfire_grace
    ids = [one["schedule_id"] for one in found["running"] if one["schedule_id"]]
    for name in ("running", "parked"):
        found[name] = await db.read(dashboard.with_names, found[name])
    acknowledged = [row for row in found["failing"] if row["acknowledged"]]
    found["failing"] = [row for row in found["failing"] if not row["acknowledged"]]
    return page(
        request, "now.html", **found, acknowledged=acknowledged, few=LIST_ROWS, most=COUNT_MAX, soon=at + HOUR,
        failing_most=FAILING_MOST,
        late=await db.read(dashboard.late, caller.org_id, kinds, at - grace, LIST_ROWS),
        paused=await db.read(dashboard.paused, caller.org_id, LIST_ROWS),
        missed=await db.read(dashboard.missed, caller.org_id, at - DAY, LIST_ROWS),
        lateness=await db.read(dashboard.lateness, caller.org_id),
        usual=await db.read(dashboard.usual, ids),
    )  # fmt: skip


@router.post("/preferences")
async def prefer(request: Request, _: SignedIn) -> Response:
    """Light or dark, and in which zone moments are shown: kept in this browser."""
    form = await read_form(request)
    response = RedirectResponse(safe_redirect_path(form.get("then", "")), 303)
    if "theme" in form:
        set_cookie(request, response, "rota_theme", form["theme"][:5], YEAR)
    if "time" in form:
        time = form["time"] if form["time"] == "schedule" else parse_zone(form["time"], "time")
        set_cookie(request, response, "rota_time", quote(time, safe=""), YEAR)
    return response
