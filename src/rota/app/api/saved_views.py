"""Routes of saved views: named filters of runs."""

from fastapi import APIRouter, Request, Response

from rota.access.store import saved_views
from rota.access.store.saved_views import Visibility
from rota.app.api import models
from rota.core.errors import Invalid, NotFound
from rota.core.run_filter import RunFilter
from rota.frame.http.auth import Caller, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of

router = APIRouter(prefix="/views", tags=["views"], route_class=BodyRoute)


@router.get("", response_model=page_of(models.View))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Your views and those that others share with the organisation, by name."""
    db = reports_of(request, caller)
    return answer_page(await db.read(saved_views.list_views, caller.org_id, caller.user_id, limit=limit, cursor=cursor))


@router.post("", status_code=201, response_model=models.View)
async def create(request: Request, caller: Viewer, body: models.ViewBody) -> Response:
    """Save a filter of runs under a name `{name, filter, visibility?}`: `private`, for all who have its `link`, or for
    the whole `org`."""
    caller.check(Role.VIEWER, "views", writes=True)
    engine, now = engine_of(request), engine_of(request).clock.now()
    body.filter.search_values(now)  # a filter that cannot be used is not stored
    visibility = body.visibility or Visibility.PRIVATE
    view_id = await engine.db.tx(
        saved_views.add, caller.org_id, caller.user_id, body.name, body.filter, visibility, now
    )
    return await answer_view(request, caller, view_id, 201)


@router.get("/{key}", response_model=models.View)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One view, by its id or name."""
    return await answer_view(request, caller, key)


@router.patch("/{key}", response_model=models.View)
async def edit(request: Request, caller: Viewer, key: str, body: models.ViewChanges) -> Response:
    """Change a view of yours; absent fields stay, and `filter` replaces the whole filter."""
    caller.check(Role.VIEWER, "views", writes=True)
    engine, now = engine_of(request), engine_of(request).clock.now()
    if body.filter is not None:
        body.filter.search_values(now)
    view_id = await engine.db.tx(
        saved_views.edit, caller.org_id, caller.user_id, key,
        now=now, name=body.name, filter=body.filter, visibility=body.visibility,
    )  # fmt: skip
    return await answer_view(request, caller, view_id)


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Viewer, key: str) -> Response:
    """Delete a view of yours; as an admin also one that another user shares."""
    caller.check(Role.VIEWER, "views", writes=True)
    is_admin = caller.role >= Role.ADMIN
    await engine_of(request).db.tx(saved_views.remove, caller.org_id, caller.user_id, key, any_owner=is_admin)
    return Response(status_code=204)


async def answer_view(request: Request, caller: Caller, key: str, status: int = 200) -> Response:
    view = await engine_of(request).db.read(saved_views.find, caller.org_id, caller.user_id, key)
    return answer(view, status, {"location": f"/api/v1/views/{view['id']}"} if status == 201 else None)


async def filter_of_view(request: Request, caller: Caller, key: str, filter: RunFilter) -> RunFilter:
    """Return the filter of a view, with the fields of `filter` instead of its own. Raises Invalid if it is
    not found."""
    try:
        view = await engine_of(request).db.read(saved_views.find, caller.org_id, caller.user_id, key)
    except NotFound as error:
        raise Invalid("view", key, "is not the id or name of a saved view: see `rota view list`") from error
    return RunFilter.read({**view["filter"], **filter.present()})
