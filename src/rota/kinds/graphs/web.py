"""The page of graphs."""

from fastapi import APIRouter, Request, Response

from rota.frame.web.pages import NavigationItem, engine_of, page
from rota.frame.web.sessions import Viewer
from rota.kinds.graphs.manager import GraphManager

router = APIRouter()

NAVIGATION = [NavigationItem("/graphs", "Graphs", "w", "graph", 1)]


@router.get("/graphs")
async def list_graphs(request: Request, caller: Viewer) -> Response:
    graphs = await GraphManager(engine_of(request), caller.org_id).list_all()
    return page(request, "graphs.html", items=graphs)
