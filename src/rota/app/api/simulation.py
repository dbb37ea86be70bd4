"""Route of simulations."""

from fastapi import APIRouter, Request, Response

from rota.app.api import planning_models as models
from rota.app.simulations import SimulationRequest, simulate_org
from rota.core.simulation import TimeRange
from rota.frame.http.auth import Viewer
from rota.frame.http.contract import answer, engine_of
from rota.frame.http.models import BodyRoute
from rota.reports.simulation import Durations

router = APIRouter(tags=["simulation"], route_class=BodyRoute)


@router.post("/simulate", response_model=models.Simulation)
async def simulate(request: Request, caller: Viewer, body: models.SimulateBody) -> Response:
    """Simulate the schedules of the org over a time range, with durations from their history; stores nothing. It uses
    the code by which the scheduler decides, and ends, truncated, after 20 seconds or 500,000 slots."""
    outages = [TimeRange(outage.since, outage.until) for outage in body.outages or ()]
    span = TimeRange(body.since, body.until)
    wanted = SimulationRequest(span, outages, body.durations or Durations.P50, body.workers)
    return answer(await simulate_org(engine_of(request), caller.org_id, wanted, request.is_disconnected))
