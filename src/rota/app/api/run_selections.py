"""Retry, cancel and delete many runs: by ids, or all that match a filter, at most SELECTION_MAX a request."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from rota.core.errors import Conflict, Invalid, NotFound, Refused
from rota.core.run_filter import RunFilter
from rota.core.states import Status
from rota.core.wire import Answer, Payload, RequestBody, Ulid, example
from rota.db.paging import PAGE_ROWS_MAX, Record
from rota.engine.commands import Engine
from rota.frame.http.auth import Admin, Caller, Operator, engine_acting_on
from rota.frame.http.contract import answer, engine_of
from rota.frame.http.models import BodyRoute
from rota.reports import run_search
from rota.reports import runs as run_reports

SELECTION_MAX = 1000
PAGES_MAX = 50  # of matches that are read to find as many

router = APIRouter(tags=["runs"], route_class=BodyRoute)


class RunSelection(RequestBody):
    """Runs by their ids, or those that match a filter: one of both is required."""

    model_config = example({"filter": {"status": "failed", "within": "24h"}, "dry_run": True})

    ids: Annotated[list[Ulid] | None, Field(max_length=SELECTION_MAX, description="of runs, or of their jobs")] = None
    filter: RunFilter | None = None
    dry_run: Annotated[bool | None, Field(description="only count")] = None


class RetryRunsBody(RunSelection):
    input: Annotated[Payload | None, Field(description="instead of the input of each run")] = None


class RefusedRun(Answer):
    id: str
    detail: str


class RunSelectionResult(Answer):
    model_config = example({"count": 40, "refused": [], "more": False})

    count: int = Field(description="runs that are retried, canceled or deleted; with `dry_run` those that are selected")
    refused: list[RefusedRun]
    more: bool = Field(description="not all that match were reached: send the request again")


@router.post("/runs/$retry", response_model=RunSelectionResult)
async def retry_many(request: Request, caller: Operator, body: RetryRunsBody) -> Response:
    """Retry runs `{ids | filter, input?, dry_run?}`. A filter selects runs that ended without
    success and were not retried."""

    async def retry(engine: Engine, key: str) -> None:
        await engine.retry(caller.org_id, key, payload=body.input)

    return await act_on(request, caller, body, "retry", is_retriable, retry)


@router.post("/runs/$cancel", response_model=RunSelectionResult)
async def cancel_many(request: Request, caller: Operator, body: RunSelection) -> Response:
    """Cancel runs `{ids | filter, dry_run?}`. A filter selects those that wait or run."""

    async def cancel(engine: Engine, key: str) -> None:
        await engine.cancel(caller.org_id, key)

    return await act_on(request, caller, body, "cancel", is_alive, cancel)


@router.post("/runs/$delete", response_model=RunSelectionResult)
async def delete_many(request: Request, caller: Admin, body: RunSelection) -> Response:
    """Delete runs that ended `{ids | filter, dry_run?}`, each with all attempts of its job, their logs and artifacts.
    Slots keep their verdicts. It cannot be undone."""

    async def delete(engine: Engine, key: str) -> None:
        await engine.delete_run(caller.org_id, key)

    return await act_on(request, caller, body, "delete", has_ended, delete)


async def act_on(
    request: Request,
    caller: Caller,
    body: RunSelection,
    verb: str,
    selects: Callable[[Record], bool],
    action: Callable[[Engine, str], Awaitable[None]],
) -> Response:
    """Act on each selected run, with an entry of the audit log each. A run that refuses does not stop the others."""
    if (body.ids is None) == (body.filter is None):
        raise Invalid("ids", body.ids, "name the runs by `ids` or by `filter`, and not by both")
    keys, more = (list(dict.fromkeys(body.ids)), False) if body.ids is not None else ([], False)
    if body.filter is not None:
        keys, more = await matching(request, caller.org_id, body.filter, selects)
    refused: list[Record] = []
    if not body.dry_run:
        for key in keys:
            try:
                await action(engine_acting_on(request, "runs", verb, key), key)
            except (Conflict, NotFound, Invalid, Refused) as error:
                refused.append({"id": key, "detail": error.message})
    return answer({"count": len(keys) - len(refused), "refused": refused, "more": more})


async def matching(
    request: Request, org_id: str, filter: RunFilter, selects: Callable[[Record], bool]
) -> tuple[list[str], bool]:
    """Return the ids of the newest runs that match, or of their jobs, and whether there are more."""
    engine = engine_of(request)
    now, cursor = engine.clock.now(), None
    values, keys = filter.search_values(now), []
    for _ in range(PAGES_MAX):
        page = await run_search.search(
            engine.db, org_id, now, limit=PAGE_ROWS_MAX, cursor=cursor, last_only=True, **values
        )
        selected = [run for run in page.items if selects(run)]
        ids = [run["id"] for run in selected if run["id"]] if selects is is_retriable else []
        retried = await engine.db.read(run_reports.retried, ids) if ids else set()
        keys += [str(run["id"] or run["job_id"]) for run in selected if run["id"] not in retried]
        cursor = page.next_cursor
        if len(keys) > SELECTION_MAX or cursor is None:
            break
    return keys[:SELECTION_MAX], len(keys) > SELECTION_MAX or cursor is not None


def is_alive(run: Record) -> bool:
    return run["finished_at"] is None


def has_ended(run: Record) -> bool:
    return run["finished_at"] is not None


def is_retriable(run: Record) -> bool:
    return run["finished_at"] is not None and run["status"] != Status.SUCCESS
