"""Routes of runs (attempts) and of the jobs that they belong to."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app.api import models
from rota.app.api.saved_views import filter_of_view
from rota.app.api.streams import log_stream
from rota.app.approvers import approver_of
from rota.core.log_levels import LogLevel
from rota.core.run_filter import RunFilter
from rota.core.states import Status
from rota.frame.http import answers
from rota.frame.http.auth import Caller, Operator, Role, Viewer
from rota.frame.http.contract import (
    INPUT_PREFIX,
    Cursor,
    Limit,
    Timestamp,
    answer,
    answer_page,
    answer_slice,
    engine_of,
)
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.frame.http.reports import reports_of
from rota.reports import failing, run_logs, run_search, why
from rota.reports import jobs as job_reports
from rota.reports import runs as run_reports
from rota.reports.run_logs import LogFilter

router = APIRouter(tags=["runs"], route_class=BodyRoute)


@router.get("/runs", response_model=page_of(models.Run))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    schedule_id: Annotated[str | None, Query(description="id or name")] = None,
    tag: Annotated[str | None, Query(description="a tag of the schedule")] = None,
    job_id: str | None = None,
    status: Status | None = None,
    reason: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    namespace: Annotated[str | None, Query(description="of pipelines")] = None,
    layer: Annotated[str | None, Query(description="of pipelines")] = None,
    pipeline: Annotated[str | None, Query(description="the last part of its path")] = None,
    input: Annotated[
        list[str] | None, Query(description="a field of the input: `customer=42`; also as `input.customer=42`")
    ] = None,
    error: Annotated[str | None, Query(description="a part of the type or message of the error")] = None,
    worker: Annotated[str | None, Query(description="id, or name of its machine")] = None,
    longer_than: Annotated[str | None, Query(description="took or takes at least this long: `5m`")] = None,
    shorter_than: Annotated[str | None, Query(description="ended within this time: `30s`")] = None,
    since: Timestamp = None,
    until: Timestamp = None,
    within: Annotated[str | None, Query(description="of the last 24h, say: `24h`")] = None,
    view: Annotated[str | None, Query(description="id or name of a saved view; other parameters override it")] = None,
) -> Response:
    """Runs, newest first; pending and running ones before those that ended. A search that takes longer than two seconds
    answers with what it has found so far: the header `Searched-Until` has the time that it has reached, and the next
    page goes on from there; narrow the range of time to be faster."""
    fields = {
        "schedule_id": schedule_id, "tag": tag, "job_id": job_id, "status": status, "reason": reason, "kind": kind,
        "target": target, "namespace": namespace, "layer": layer, "pipeline": pipeline,
        "input": input_texts(request, input), "error": error, "worker": worker, "longer_than": longer_than,
        "shorter_than": shorter_than, "since": since, "until": until, "within": within,
    }  # fmt: skip
    engine = engine_of(request)
    now = engine.clock.now()
    filter = RunFilter.read({name: value for name, value in fields.items() if value is not None})
    if view is not None:
        filter = await filter_of_view(request, caller, view, filter)
    values = filter.search_values(now)
    page = await run_search.search(
        reports_of(request, caller), caller.org_id, now, limit=limit, cursor=cursor, **values
    )
    headers = {} if page.searched_until is None else {"searched-until": page.searched_until.isoformat()}
    return answer({"items": page.items, "next_cursor": page.next_cursor}, headers=headers)


def input_texts(request: Request, texts: list[str] | None) -> list[str] | None:
    """Return the filters of input fields: values of `input`, and parameters such as `input.customer`."""
    named = [
        f"{name.removeprefix(INPUT_PREFIX)}={value}"
        for name, value in request.query_params.multi_items()
        if name.startswith(INPUT_PREFIX)
    ]
    return [*(texts or ()), *named] or None


@router.get("/runs/{run_id}", response_model=models.Run)
async def read(request: Request, caller: Viewer, run_id: str) -> Response:
    return answer(await engine_of(request).db.read(run_reports.run, caller.org_id, run_id))


@router.get("/runs/{run_id}/$why", response_model=models.Why)
async def why_run(request: Request, caller: Viewer, run_id: str) -> Response:
    """Explain a run: who requested it, each attempt, what it waits for. Also by the id of its job."""
    engine = engine_of(request)
    return answer(
        await reports_of(request, caller).read(why.of_run, caller.org_id, run_id, engine.clock.now(), engine.runners)
    )


@router.get("/runs/{run_id}/logs", response_model=page_of(models.Line))
async def logs(
    request: Request,
    caller: Viewer,
    run_id: str,
    after: Annotated[int, Query(ge=0, le=2**62, description="id of the last line read")] = 0,
    limit: Limit = 200,
    level: Annotated[LogLevel | None, Query(description="lines of at least this level")] = None,
    stream: Annotated[str | None, Query(description="stdout, stderr, log or system")] = None,
    contains: Annotated[str | None, Query(description="a part of the line, in any case of letters")] = None,
) -> Response:
    """Log lines of a run, oldest first. `next_cursor` is the next `after`. With `Accept: text/event-stream` lines are
    streamed as they are written, until the run ends, all of them: filters are for pages; an event `steps` says that
    recorded steps of a durable task changed."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return await log_stream(request, caller, run_id, after)
    db, wanted = engine_of(request).db, LogFilter(level, stream, contains)
    return answer_page(await db.read(run_logs.lines_after, caller.org_id, run_id, after, limit, wanted))


@router.post("/runs/{run_id}/$cancel", status_code=202, response_model=answers.JobRef)
async def cancel_run(request: Request, caller: Operator, run_id: str, _: NoFields) -> Response:
    """Cancel a run: its code is signalled at once; the run ends as `canceled` when the code has stopped."""
    return answer({"job_id": await engine_of(request).cancel(caller.org_id, run_id)}, 202)


@router.post("/runs/{run_id}/$retry", status_code=202, response_model=answers.JobRef)
async def retry(
    request: Request,
    caller: Operator,
    run_id: str,
    body: Annotated[models.RetryBody, Body(default_factory=models.RetryBody)],
) -> Response:
    """Start another attempt of a run that ended `{from_step?, input?}`. With `from_step` it keeps the recorded results
    of the steps before that one."""
    engine = engine_of(request)
    job_id = await engine.retry(caller.org_id, run_id, from_step=body.from_step, payload=body.input)
    return answer({"job_id": job_id}, 202)


@router.post("/runs/{run_id}/$approve", status_code=202, response_model=answers.JobRef)
async def approve(
    request: Request,
    caller: Viewer,
    run_id: str,
    body: Annotated[models.DecisionBody, Body(default_factory=models.DecisionBody)],
) -> Response:
    """Approve what a run waits for `{comment?, step?}`: as an admin, the user or role that it names, or with a key that
    has the scope `approve:WHO`."""
    return await decide(request, caller, run_id, body, True)


@router.post("/runs/{run_id}/$reject", status_code=202, response_model=answers.JobRef)
async def reject(
    request: Request,
    caller: Viewer,
    run_id: str,
    body: Annotated[models.DecisionBody, Body(default_factory=models.DecisionBody)],
) -> Response:
    """Reject what a run waits for, like `$approve`."""
    return await decide(request, caller, run_id, body, False)


async def decide(request: Request, caller: Caller, run_id: str, body: models.DecisionBody, approved: bool) -> Response:
    caller.check(Role.VIEWER, "runs", writes=True)
    engine = engine_of(request)
    approver = await approver_of(engine.db, caller)
    job_id = await engine.decide_approval(
        caller.org_id, run_id, approved=approved, by=approver.name, may=approver.may_decide, comment=body.comment,
        step=body.step,
    )  # fmt: skip
    return answer({"job_id": job_id}, 202)


@router.post("/runs/{run_id}/$resolve", status_code=202, response_model=answers.JobRef)
async def resolve(request: Request, caller: Operator, run_id: str, body: models.ResolveBody) -> Response:
    """Decide an effect of a task whose outcome is unknown: `applied` with its `result`, `not_applied` (it is tried
    again), or `skip` (the task goes on without it)."""
    engine = engine_of(request)
    approver = await approver_of(engine.db, caller)
    job_id = await engine.resolve_effect(
        caller.org_id, run_id, body.resolution, by=approver.name, result=body.result, step=body.step
    )
    return answer({"job_id": job_id}, 202)


@router.get("/failing", response_model=page_of(models.Failing))
async def list_failing(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Schedules, and targets of jobs without a schedule, whose newest job of the last 24 hours failed and that have
    not succeeded since; latest failure first, at most 200. `times` counts failed jobs."""
    engine = engine_of(request)
    return answer_slice(
        await reports_of(request, caller).read(failing.failing, caller.org_id, engine.clock.now()), limit, cursor
    )


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
        await reports_of(request, caller).read(
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
