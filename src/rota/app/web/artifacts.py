"""Previews of artifacts, which pages show in frames that have no rights: no script, and not the origin of the page."""

import asyncio

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from rota.app import artifact_previews
from rota.app.artifact_previews import PreviewKind
from rota.core.errors import LogicError, NotFound
from rota.engine import artifact_contents
from rota.frame.http.auth import Role
from rota.frame.web.pages import engine_of, page
from rota.frame.web.sessions import SignedIn
from rota.user_code.frames import PARQUET

router = APIRouter()

HTML_BYTES = 5 << 20
FRAMED = "sandbox; default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
POLICIES = {
    PreviewKind.IMAGE: f"{FRAMED}; style-src 'unsafe-inline'",  # of SVG
    PreviewKind.HTML: f"{FRAMED}; style-src 'unsafe-inline'; img-src data:; font-src data:",
    PreviewKind.TABLE: f"{FRAMED}; style-src 'self'",
    PreviewKind.TEXT: f"{FRAMED}; style-src 'self'",
}


@router.get("/files/{artifact_id}/preview")
async def preview(request: Request, caller: SignedIn, artifact_id: str) -> Response:
    """Show an artifact: an image or HTML page as it is, the first rows of a table, the beginning of a text."""
    caller.check(Role.VIEWER, "artifacts")
    content = await artifact_contents.open_content(engine_of(request), caller.org_id, artifact_id, public=True)
    kind = artifact_previews.kind_of(content.content_type, content.size)
    if kind is None:
        raise NotFound(f"artifact {artifact_id!r} has no preview: download it")
    headers = {"content-security-policy": POLICIES[kind]}
    if kind in (PreviewKind.IMAGE, PreviewKind.HTML):
        end = None if kind is PreviewKind.IMAGE else min(content.size, HTML_BYTES)
        return StreamingResponse(content.parts(0, end), 200, headers, media_type=content.content_type)
    whole = content.content_type.startswith(PARQUET)
    end = content.size if whole else min(content.size, artifact_previews.TEXT_BYTES)
    read = b"".join([part async for part in content.parts(0, end)])
    table, text, problem = None, None, None
    if kind is PreviewKind.TEXT:
        text = artifact_previews.text_of(content.content_type, read)
    else:
        try:
            table = await asyncio.to_thread(artifact_previews.table_of, content.content_type, read, artifact_id)
        except LogicError as error:
            problem = error.message
    answer = page(
        request, "artifact_preview.html", table=table, text=text, problem=problem, cut=end < content.size,
        bytes_shown=end, size=content.size,
    )  # fmt: skip
    answer.headers.update(headers)
    return answer
