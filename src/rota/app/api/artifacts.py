"""Routes of artifacts: results and files that runs saved."""

from fastapi import APIRouter, Request, Response

from rota.app.api import models
from rota.app.api.downloads import download_of
from rota.engine import artifact_contents, artifacts
from rota.frame.http.auth import Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import page_of
from rota.frame.http.reports import reports_of

router = APIRouter(prefix="/artifacts", tags=["artifacts"])


@router.get("", response_model=page_of(models.ArtifactBrief))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    run_id: str | None = None,
    parent_id: str | None = None,
    label: str | None = None,
) -> Response:
    """Artifacts, newest first, without content. The result of a task's run has the run's id."""
    return answer_page(
        await reports_of(request, caller).read(
            artifacts.list_all,
            caller.org_id,
            limit=limit,
            cursor=cursor,
            run_id=run_id,
            parent_id=parent_id,
            label=label,
        )
    )


@router.get("/{artifact_id}", response_model=models.Artifact)
async def read(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact; `data` is its content where that is JSON or text."""
    return answer(await artifact_contents.find(engine_of(request), caller.org_id, artifact_id, public=True))


@router.get("/{artifact_id}/$tree", response_model=models.Tree)
async def tree(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact with its descendants, in `children`."""
    return answer(await artifact_contents.find_tree(engine_of(request), caller.org_id, artifact_id, public=True))


@router.get("/{artifact_id}/$expand", response_model=models.Expanded)
async def expand(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """An artifact as a node of its tree, without its descendants: `children` is null."""
    artifact = await artifact_contents.find(engine_of(request), caller.org_id, artifact_id, public=True)
    return answer({**artifact, "children": None})


@router.get("/{artifact_id}/$content")
async def download(request: Request, caller: Viewer, artifact_id: str) -> Response:
    """The content as it was saved, always as a download: it may be HTML or script that a task wrote. Answers to
    `Range: bytes=…`; `Repr-Digest` has the SHA-256 of a content in the object store."""
    content = await artifact_contents.open_content(engine_of(request), caller.org_id, artifact_id, public=True)
    return await download_of(request, content)
