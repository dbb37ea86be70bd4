"""System page: findings of `rota doctor`, slot audit, gauges."""

from fastapi import APIRouter, Request, Response

from rota.access.store import logins
from rota.app.doctor import check_database
from rota.db.blocking import sqlite_path
from rota.engine.slot_audit import audit
from rota.frame.http.reports import replica_state
from rota.frame.web.pages import NavigationItem, engine_of, page
from rota.frame.web.sessions import Viewer
from rota.reports import installation
from rota.version import __version__

router = APIRouter()

NAVIGATION = [NavigationItem("/system", "System", "y", "heart", 2)]


@router.get("/system")
async def system(request: Request, caller: Viewer, examine: bool = False, proof: bool = False) -> Response:
    """Show the system page. Findings cover all orgs: with several orgs only instance admins see them."""
    engine, db = engine_of(request), engine_of(request).db
    sees_all = caller.instance_admin or not await db.read(logins.several_orgs)
    findings = (
        [finding async for finding in check_database(db, sqlite_path(db.url), wake_ups=examine)] if sees_all else []
    )
    proven = await audit(db, caller.org_id, None, None, engine.clock.now()) if proof else None
    gauges = await db.read(installation.gauges, engine.clock.now())
    return page(
        request,
        "system.html",
        findings=findings,
        gauges=gauges,
        proven=proven,
        replica=replica_state(request),
        version=__version__,
    )
