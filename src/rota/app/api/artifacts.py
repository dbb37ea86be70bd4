"""Artifacts: what runs left behind."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.engine import artifacts
from rota.frame.http.auth import Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of

router = APIRouter(prefix="/artifacts", tags=["artifacts"])


@router.get("")
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    run_id: str | None = None,
    parent_id: str | None = None,
    label: str | None = None,
) -> Response:
    """What runs saved, newest first, without its content. The artifact of a task's run itself goes by the run's id."""
    wanted: dict[str, Any] = {
        "limit": limit,
        "cursor": cursor,
        "run_id": run_id,
        "parent_id": parent_id,
        "label": label,
    }
    return answer_page(await engine_of(request).db.read(artifacts.list_all, caller.org_id, **wanted))


@router.get("/{artifact_id}")
async def read(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact; `data` is its content where that is JSON or text."""
    return answer(await engine_of(request).db.read(artifacts.get, caller.org_id, artifact_id, public=True))


@router.get("/{artifact_id}/$tree")
async def tree(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact with all that hangs below it, in `children`."""
    return answer(await engine_of(request).db.read(artifacts.tree, caller.org_id, artifact_id, public=True))


@router.get("/{artifact_id}/$expand")
async def expand(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact as a node of its tree whose children nobody loaded: `children` is null."""
    found = await engine_of(request).db.read(artifacts.get, caller.org_id, artifact_id, public=True)
    return answer({**found, "children": None})


@router.get("/{artifact_id}/$content")
async def download(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """The content as it was saved. Never shown by a browser as a page: it may be anything that a task wrote."""
    content_type, content = await engine_of(request).db.read(artifacts.content, caller.org_id, artifact_id, public=True)
    headers = {
        "content-disposition": f'attachment; filename="{artifact_id}"', "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
    }  # fmt: skip
    return Response(content, media_type=content_type, headers=headers)
