"""Route that enqueues a job of any kind, now or at `run_at`."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.app.api.models import JobBody
from rota.core.errors import Invalid, NotFound
from rota.frame.http.answers import JobRef
from rota.frame.http.auth import Caller, Operator
from rota.frame.http.contract import answer, engine_of, trace_of
from rota.frame.http.models import BodyRoute
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store.hosts import KIND as HOST_JOB
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.tasks.manager import TaskManager

router = APIRouter(tags=["jobs"], route_class=BodyRoute)


@router.post("/jobs", status_code=202, response_model=JobRef)
async def create(request: Request, caller: Operator, body: JobBody) -> Response:
    """Enqueue a job: `{target, kind?, input?, queue?, priority?, run_at?, job_key?, key_mode?, after?, when?}`. While
    another job has the same `job_key`, `key_mode` decides: `reject` (409, the default), `preserve` (returns that job)
    or `replace` (replaces it if it has not started). With `after`, ids of jobs, it runs when all of these have ended:
    `when` they succeeded (`success`, the default), at least one did not (`failure`), or in any case (`any`); else it is
    `skipped: dependency`. A graph runs under a grant created for this job."""
    options: dict[str, object] = {
        "queue_name": body.queue,
        "priority": body.priority,
        "run_at": body.run_at,
        "job_key": body.job_key,
        "key_mode": body.key_mode or "reject",
        **({"after": body.after, "when": body.when or "success"} if body.after else {}),
        "trace": trace_of(request),
    }
    return answer(
        {"job_id": await enqueue(request, caller, body.kind or "task", body.target, body.input, options)}, 202
    )


async def enqueue(
    request: Request, caller: Caller, kind: str, target: str, payload: Any, options: dict[str, Any]
) -> str:
    engine, org_id = engine_of(request), caller.org_id
    try:
        if kind == "task":
            return await TaskManager(engine, org_id, caller.user_id).execute_task(target, payload, **options)
        if kind == "graph":
            if "after" in options:
                raise Invalid("after", options["after"][:3], "is not possible for graphs; enqueue a task that runs it")
            return await GraphManager(engine, org_id).run(target, payload, None, caller.user_id, **options)
        if kind == "pipeline":
            return await PipelineManager(engine, org_id, caller.user_id).run(target, payload, **options)
    except NotFound as error:
        raise Invalid("target", target, f"is not a known {kind}") from error
    if ":" in target:
        raise Invalid("target", target, "selects several servers; create a batch instead (POST /batches)")
    caller.check_job_type(payload.get("job_type") if isinstance(payload, dict) else None)
    target = await HostManager(engine, org_id).target_id(target)
    return (await engine.enqueue(org_id, HOST_JOB, target, [payload], **options))[0]
