"""Routes of graphs: list them, and run one now."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from rota.frame.http.answers import JobRef
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_slice, engine_of, trace_of
from rota.frame.http.models import BodyRoute, page_of
from rota.kinds.graphs.api.models import Graph, GraphBody
from rota.kinds.graphs.manager import GraphManager

router = APIRouter(prefix="/graphs", tags=["graphs"], route_class=BodyRoute)


@router.get("", response_model=page_of(Graph))
async def list_all(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """The graphs that this server's program declares, or a live worker announces (`live`)."""
    items = await GraphManager(engine_of(request), caller.org_id).list_all()
    return answer_slice(items, limit, cursor)


@router.post("/{graph_id}/$run", status_code=202, response_model=JobRef)
async def run(
    request: Request, caller: Operator, graph_id: str, body: Annotated[GraphBody, Body(default_factory=GraphBody)]
) -> Response:
    """Enqueue a job now: `{input?, grant_id?}`. Without a grant, one is minted for this graph, charged to the caller's
    account, that expires in a day. A `traceparent` header sets the trace id of its run."""
    manager = GraphManager(engine_of(request), caller.org_id)
    job_id = await manager.run(graph_id, body.input, body.grant_id, caller.user_id, trace_of(request))
    return answer({"job_id": job_id}, 202)
