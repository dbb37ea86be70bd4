"""The system: what `rota doctor` finds, and the proof that every slot has its verdict."""

from fastapi import APIRouter, Request, Response

from rota.access.store import logins
from rota.app.doctor import check_database, sqlite_path
from rota.engine import reports as engine_reports
from rota.engine.slot_audit import audit
from rota.frame.web.pages import Place, engine_of, page
from rota.frame.web.sessions import Viewer
from rota.version import __version__

router = APIRouter()

PLACES = [Place("/system", "System", "y", "heart", 2)]


@router.get("/system")
async def system(request: Request, caller: Viewer, examine: bool = False, proof: bool = False) -> Response:
    """What the doctor finds concerns all orgs: where there are several, only whoever may make orgs sees it."""
    engine, db = engine_of(request), engine_of(request).db
    sees_all = caller.instance_admin or not await db.read(logins.several_orgs)
    findings = [one async for one in check_database(db, sqlite_path(db.url), wake_ups=examine)] if sees_all else []
    proven = await audit(db, caller.org_id, None, None, engine.clock.now()) if proof else None
    gauges = await db.read(engine_reports.gauges, engine.clock.now())
    return page(request, "system.html", findings=findings, gauges=gauges, proven=proven, version=__version__)
