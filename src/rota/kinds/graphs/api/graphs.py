"""Routes of graphs: list them, and run one now."""

from fastapi import APIRouter, Request, Response

from rota.core import parse
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_slice, engine_of, read_body, trace_of
from rota.kinds.graphs.manager import GraphManager

router = APIRouter(prefix="/graphs", tags=["graphs"])


@router.get("")
async def list_all(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """The graphs that this server's program declares, or a live worker announces (`live`)."""
    items = await GraphManager(engine_of(request), caller.org_id).list_all()
    return answer_slice(items, limit, cursor)


@router.post("/{graph_id}/$run", status_code=202)
async def run(request: Request, caller: Operator, graph_id: str) -> Response:
    """Enqueue a job now: `{input?, grant_id?}`. Without a grant, one is minted for this graph, charged to the caller's
    account, that expires in a day. A `traceparent` header sets the trace id of its run."""
    body = await read_body(request, ["input", "grant_id"], optional=True)
    grant_id = parse.ulid(body["grant_id"], "grant_id") if "grant_id" in body else None
    manager = GraphManager(engine_of(request), caller.org_id)
    job_id = await manager.run(graph_id, body.get("input"), grant_id, caller.user_id, trace_of(request))
    return answer({"job_id": job_id}, 202)
