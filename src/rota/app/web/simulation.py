"""Page of a simulation: a form and its result with a picture of the load."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response

from rota.app.simulations import SimulationRequest, simulate_org
from rota.core.errors import RotaError
from rota.core.policy import choice
from rota.core.simulation import TimeRange
from rota.core.timing.triggers import parse_instant
from rota.db.paging import Record
from rota.frame.web.forms import number, to_rfc3339
from rota.frame.web.pages import NavigationItem, engine_of, page, preferences, query_values
from rota.frame.web.sessions import Viewer
from rota.reports.simulation import Durations

router = APIRouter()

NAVIGATION = [NavigationItem("/simulate", "Simulation", "m", "play", 2)]
DAY = timedelta(days=1)


@router.get("/simulate")
async def simulation(request: Request, caller: Viewer) -> Response:
    """Show the form; with a time range also what would happen in it."""
    engine = engine_of(request)
    query = query_values(request, "from", "to", "outage_from", "outage_to", "durations", "workers")
    result: Record | None = None
    refusal: str | None = None
    if query["from"] is not None and query["to"] is not None:
        try:
            wanted = request_of(query, preferences(request).zone)
            result = await simulate_org(engine, caller.org_id, wanted, request.is_disconnected)
        except RotaError as error:
            refusal = error.message
    return page(
        request,
        "simulate.html",
        query=query,
        result=result,
        refusal=refusal,
        hours=by_hour(result) if result is not None else [],
        durations=[each.value for each in Durations],
    )


def request_of(query: dict[str, str | None], zone: str) -> SimulationRequest:
    """Return the request of a form. Raises Invalid."""

    def instant(field: str) -> datetime:
        return parse_instant(to_rfc3339(query[field] or "", zone), field)

    outages = [TimeRange(instant("outage_from"), instant("outage_to"))] if query["outage_from"] else []
    workers = number(query["workers"]) if query["workers"] else None
    return SimulationRequest(
        TimeRange(instant("from"), instant("to")),
        outages,
        choice(Durations, query["durations"] or Durations.P50, "durations"),
        workers if isinstance(workers, int) and workers > 0 else None,
    )


def by_hour(result: Record) -> list[tuple[str, float]]:
    """Return the minutes of runs in each hour, over all queues."""
    hours: dict[datetime, float] = {}
    for row in result["load"]:
        hours[row["hour"]] = hours.get(row["hour"], 0.0) + row["seconds"] / 60
    return [(f"{hour:%m-%d %H:%M}", round(minutes, 1)) for hour, minutes in sorted(hours.items())]
