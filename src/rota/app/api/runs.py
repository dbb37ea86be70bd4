"""Routes of runs (attempts) and of the jobs that they belong to."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app.api import models
from rota.app.api.streams import log_stream
from rota.core.states import Status
from rota.frame.http import answers
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import (
    Cursor,
    Limit,
    Timestamp,
    answer,
    answer_page,
    answer_slice,
    engine_of,
    time_span,
)
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.reports import failing, why
from rota.reports import jobs as job_reports
from rota.reports import runs as run_reports

router = APIRouter(tags=["runs"], route_class=BodyRoute)


@router.get("/runs", response_model=page_of(models.Run))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    schedule_id: Annotated[str | None, Query(description="id or name")] = None,
    job_id: str | None = None,
    status: Status | None = None,
    reason: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    namespace: Annotated[str | None, Query(description="of pipelines")] = None,
    layer: Annotated[str | None, Query(description="of pipelines")] = None,
    pipeline: Annotated[str | None, Query(description="the last part of its path")] = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """Runs, newest first; pending and running ones before those that ended."""
    return answer_page(
        await engine_of(request).db.read(
            run_reports.list_runs,
            caller.org_id,
            limit=limit,
            cursor=cursor,
            schedule_id=schedule_id,
            job_id=job_id,
            reason=reason,
            kind=kind,
            status=status,
            target=target,
            namespace=namespace,
            layer=layer,
            pipeline=pipeline,
            **time_span(since, until),
        )
    )


@router.get("/runs/{run_id}", response_model=models.Run)
async def read(request: Request, caller: Viewer, run_id: str) -> Response:
    return answer(await engine_of(request).db.read(run_reports.run, caller.org_id, run_id))


@router.get("/runs/{run_id}/$why", response_model=models.Why)
async def why_run(request: Request, caller: Viewer, run_id: str) -> Response:
    """Explain a run: who requested it, each attempt, what it waits for. Also by the id of its job."""
    engine = engine_of(request)
    return answer(await engine.db.read(why.of_run, caller.org_id, run_id, engine.clock.now(), engine.runners))


@router.get("/runs/{run_id}/logs", response_model=page_of(models.Line))
async def logs(
    request: Request,
    caller: Viewer,
    run_id: str,
    after: Annotated[int, Query(ge=0, le=2**62, description="id of the last line read")] = 0,
    limit: Limit = 200,
) -> Response:
    """Log lines of a run, oldest first. `next_cursor` is the next `after`. With `Accept: text/event-stream` lines are
    streamed as they are written, until the run ends."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return await log_stream(request, caller, run_id, after)
    db = engine_of(request).db
    return answer_page(await db.read(run_reports.run_logs, caller.org_id, run_id, after=after, limit=limit))


@router.post("/runs/{run_id}/$cancel", status_code=202, response_model=answers.JobRef)
async def cancel_run(request: Request, caller: Operator, run_id: str, _: NoFields) -> Response:
    """Cancel a run: its code is signalled at once; the run ends as `canceled` when the code has stopped."""
    return answer({"job_id": await engine_of(request).cancel(caller.org_id, run_id)}, 202)


@router.post("/runs/{run_id}/$retry", status_code=202, response_model=answers.JobRef)
async def retry(request: Request, caller: Operator, run_id: str, _: NoFields) -> Response:
    """Start another attempt of a run that ended."""
    return answer({"job_id": await engine_of(request).retry(caller.org_id, run_id)}, 202)


@router.get("/failing", response_model=page_of(models.Failing))
async def list_failing(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Schedules, and targets of jobs without a schedule, whose newest job of the last 24 hours failed and that have
    not succeeded since; latest failure first, at most 200. `times` counts failed jobs."""
    engine = engine_of(request)
    return answer_slice(await engine.db.read(failing.failing, caller.org_id, engine.clock.now()), limit, cursor)


@router.post("/runs/{run_id}/$acknowledge", status_code=204)
async def acknowledge(
    request: Request,
    caller: Operator,
    run_id: str,
    body: Annotated[models.AcknowledgeBody, Body(default_factory=models.AcknowledgeBody)],
) -> Response:
    """Acknowledge the failure of a run's schedule or target `{note?}`, until its next success."""
    engine, note = engine_of(request), body.note or ""
    await engine.db.tx(failing.acknowledge, caller.org_id, run_id, caller.user_id, note, engine.clock.now())
    return Response(status_code=204)


@router.post("/runs/{run_id}/$unacknowledge", status_code=204)
async def unacknowledge(request: Request, caller: Operator, run_id: str) -> Response:
    """Withdraw an acknowledgement."""
    await engine_of(request).db.tx(failing.unacknowledge, caller.org_id, run_id)
    return Response(status_code=204)


@router.get("/jobs", tags=["jobs"], response_model=page_of(answers.JobBrief))
async def list_jobs(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Status | None = None,
    kind: str | None = None,
    target: str | None = None,
) -> Response:
    """Jobs, newest first; waiting and running ones before those that ended."""
    return answer_page(
        await engine_of(request).db.read(
            job_reports.list_jobs, caller.org_id, limit=limit, cursor=cursor, status=status, kind=kind, target=target
        )
    )


@router.get("/jobs/{job_id}", tags=["jobs"], response_model=answers.Job)
async def read_job(request: Request, caller: Viewer, job_id: str) -> Response:
    return answer(await engine_of(request).db.read(job_reports.job, caller.org_id, job_id))


@router.post("/jobs/{job_id}/$cancel", status_code=202, tags=["jobs"], response_model=answers.JobRef)
async def cancel_job(request: Request, caller: Operator, job_id: str, _: NoFields) -> Response:
    """Cancel a job: at once if it waits, through its worker if it runs."""
    return answer({"job_id": await engine_of(request).cancel(caller.org_id, job_id)}, 202)


@router.delete("/jobs/{job_id}", status_code=204, tags=["jobs"])
async def delete_job(request: Request, caller: Operator, job_id: str) -> Response:
    """Cancel a job, like `$cancel`. Its runs are kept."""
    await engine_of(request).cancel(caller.org_id, job_id)
    return Response(status_code=204)
