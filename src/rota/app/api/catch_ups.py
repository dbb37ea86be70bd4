"""Routes of catch-ups: passed slots that wait for an approval."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app.api import catch_up_models as models
from rota.app.approvers import approver_of
from rota.core.catch_up import CatchUpChoice
from rota.core.policy import Misfire
from rota.engine.catch_up_commands import catch_up_choice
from rota.frame.http.auth import Caller, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.reports import catch_ups as reports

router = APIRouter(prefix="/catch-ups", tags=["catch-ups"], route_class=BodyRoute)


@router.get("", response_model=page_of(models.CatchUpSummary))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Literal["open", "approved", "rejected", "withdrawn"] | None = None,
    schedule: Annotated[str | None, Query(description="id or name")] = None,
) -> Response:
    """Catch-ups that wait for an approval or were decided, the newest first."""
    db = engine_of(request).db
    return answer_page(
        await db.read(
            reports.list_catch_ups, caller.org_id, limit=limit, cursor=cursor, status=status, schedule=schedule
        )
    )


@router.get("/{key}", response_model=models.CatchUp)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One catch-up with its slots."""
    return answer(await engine_of(request).db.read(reports.catch_up, caller.org_id, key))


@router.post("/{key}/$approve", response_model=models.CatchUp)
async def approve(
    request: Request,
    caller: Viewer,
    key: str,
    body: Annotated[models.ApproveBody, Body(default_factory=models.ApproveBody)],
) -> Response:
    """Fire slots of a catch-up `{gap?, limit?, spread_hours?, comment?}`: all, oldest first up to `limit` and spread
    over some hours, or the latest (`once`); the others are missed. As an admin, or with the scope
    `approve:catch-up`."""
    chosen = catch_up_choice(body.gap or Misfire.ALL, body.limit, body.spread_hours)
    return await decide(request, caller, key, chosen, body.comment)


@router.post("/{key}/$reject", response_model=models.CatchUp)
async def reject(
    request: Request,
    caller: Viewer,
    key: str,
    body: Annotated[models.RejectBody, Body(default_factory=models.RejectBody)],
) -> Response:
    """Leave the slots of a catch-up missed `{comment?}`: as an admin, or with the scope `approve:catch-up`."""
    return await decide(request, caller, key, None, body.comment)


async def decide(
    request: Request, caller: Caller, key: str, chosen: CatchUpChoice | None, comment: str | None
) -> Response:
    caller.check(Role.VIEWER, "catch-ups", writes=True)
    engine = engine_of(request)
    approver = await approver_of(engine.db, caller)

    def may(who: str) -> bool:
        return caller.may_approve(who, None)

    await engine.decide_catch_up(caller.org_id, key, chosen, by=approver.name, may=may, comment=comment)
    return answer(await engine.db.read(reports.catch_up, caller.org_id, key))
