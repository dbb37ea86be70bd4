"""Route that enqueues a job of any kind, now or at `run_at`."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.core import parse
from rota.core.errors import Invalid, NotFound
from rota.core.timing import triggers
from rota.frame.http.auth import Caller, Operator
from rota.frame.http.contract import answer, engine_of, read_body, trace_of
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store.hosts import KIND as HOST_JOB
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.tasks.manager import TaskManager

router = APIRouter(tags=["jobs"])

KINDS = ("task", "graph", "pipeline", HOST_JOB)
KEY_MODES = ("reject", "preserve", "replace")
JOB_FIELDS = frozenset({"target", "kind", "input", "queue", "priority", "run_at", "job_key", "key_mode"})


@router.post("/jobs", status_code=202)
async def create(request: Request, caller: Operator) -> Response:
    """Enqueue a job: `{target, kind?, input?, queue?, priority?, run_at?, job_key?, key_mode?}`. While another job has
    the same `job_key`, `key_mode` decides: `reject` (409, the default), `preserve` (returns that job) or `replace`
    (replaces it if it has not started). A graph runs under a grant created for this job."""
    body = await read_body(request)
    form = parse.Form(body, JOB_FIELDS)
    kind = form.take("kind", lambda value, field: parse.one_of(value, field, list(KINDS)), "task") or "task"
    target = form.need("target", lambda value, field: parse.text(value, field, 500, required=True)) or ""
    payload = form.take("input", parse.payload, None)
    options: dict[str, Any] = {
        "queue_name": form.take("queue", parse.name, "default"),
        "priority": form.take("priority", lambda value, field: parse.whole(value, field, -100, 100), 0),
        "run_at": form.take("run_at", triggers.parse_instant, None),
        "job_key": form.take("job_key", parse.label, None),
        "key_mode": form.take("key_mode", lambda value, field: parse.one_of(value, field, list(KEY_MODES)), "reject"),
        "trace": trace_of(request),
    }
    form.done()
    return answer({"job_id": await enqueue(request, caller, kind, target, payload, options)}, 202)


async def enqueue(
    request: Request, caller: Caller, kind: str, target: str, payload: Any, options: dict[str, Any]
) -> str:
    engine, org_id = engine_of(request), caller.org_id
    try:
        if kind == "task":
            return await TaskManager(engine, org_id, caller.user_id).execute_task(target, payload, **options)
        if kind == "graph":
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
