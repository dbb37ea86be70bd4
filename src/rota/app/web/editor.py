"""Pages to create and edit a schedule, with a preview of its next slots."""

from collections.abc import Mapping
from datetime import datetime

import orjson
from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.app import views
from rota.app.impact import impact_of_edit
from rota.app.web.schedules import schema_of
from rota.core import schedule_form, timing_form
from rota.core.errors import Invalid, NotFound
from rota.core.policy import Misfire, Overlap
from rota.core.timing.dst import zone_names
from rota.db.paging import Record
from rota.engine.compute import compute
from rota.frame.http.auth import Caller
from rota.frame.web.actions import Answer, call_api
from rota.frame.web.forms import body_of, by_schema, schema_of_model
from rota.frame.web.pages import NavigationItem, engine_of, flash, page
from rota.frame.web.sessions import Viewer, read_form
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.hosts import reports as host_reports
from rota.kinds.pipelines import store as pipelines_store
from rota.kinds.tasks import reports as tasks_reports
from rota.reports import calendars as calendar_reports
from rota.reports import freezes as freeze_reports
from rota.reports import schedules as schedule_reports

router = APIRouter()

NAVIGATION: list[NavigationItem] = []
PREVIEW_SLOTS = 10
MAX_OFFERED_TARGETS = 200  # suggestions; others can be typed
DEFAULTS = {"schedule_type": "cron", "timezone": "UTC", "kind": "task"}
LISTS = ("tags", "after")  # fields that are typed separated by commas
HOST_JOB_EXAMPLE = '{"job_type": "shell", "payload": {"command": "uptime"}}'
TYPES_OF = timing_form.TYPES_OF_FIELD
SCHEMA = schema_of_model(schedule_form.ScheduleBody)


@router.get("/schedules/new")
async def new(request: Request, caller: Viewer) -> Response:
    """Show a form, filled from the query parameters."""
    example = {"input": HOST_JOB_EXAMPLE} if request.query_params.get("kind") == "host_job" else {}
    return await form_page(request, caller, {**DEFAULTS, **example, **request.query_params})


@router.post("/schedules/new")
async def create(request: Request, caller: Viewer) -> Response:
    return await submit(request, caller, None)


@router.post("/schedules/preview")
async def preview(request: Request, caller: Viewer) -> Response:
    """Render the preview, which the script updates while typing."""
    form = await read_form(request)
    return page(
        request,
        "preview.html",
        preview=await preview_of(request, caller, form),
        impact=await impact_of(request, caller, form, form.get("edited_id")),
        zone=form.get("timezone"),
    )


@router.get("/schedules/{key}/edit")
async def edit(request: Request, caller: Viewer, key: str) -> Response:
    schedule = await engine_of(request).db.read(schedule_reports.schedule, caller.org_id, key)
    return await form_page(request, caller, written(schedule), schedule)


@router.post("/schedules/{key}/edit")
async def save(request: Request, caller: Viewer, key: str) -> Response:
    return await submit(
        request, caller, await engine_of(request).db.read(schedule_reports.schedule, caller.org_id, key)
    )


async def submit(request: Request, caller: Caller, old: Record | None) -> Response:
    """Save the form, or show it again with errors or a preview."""
    form = await read_form(request)
    if "preview" in form:
        return await form_page(request, caller, form, old)
    try:
        body = await typed(request, caller, form)
    except Invalid as error:
        return await form_page(request, caller, form, old, Answer(422, problem(error)))
    path, method = ("/schedules", "POST") if old is None else (f"/schedules/{old['id']}", "PUT")
    answer = await call_api(request, method, path, body, if_match=form.get("if_match", ""))
    if answer.refusal is not None:
        return await form_page(request, caller, form, old, answer)
    response = RedirectResponse(f"/schedules/{answer.data['id']}", 303)
    flash(
        request, response, f"{answer.data['name']} is {'created' if old is None else 'saved'}: {answer.data['words']}"
    )
    return response


async def form_page(
    request: Request,
    caller: Caller,
    form: Mapping[str, str],
    old: Record | None = None,
    refused: Answer | None = None,
) -> Response:
    engine, wanted = engine_of(request), {"kind": form.get("kind", "task"), "target": form.get("target", "")}
    targets = await targets_of(request, caller)
    wrong = {item["field"]: item["message"] for item in (refused.data or {}).get("errors", [])} if refused else {}
    return page(
        request,
        "editor.html",
        refused.status if refused else 200,
        form=form,
        old=old,
        targets=targets,
        wrong=wrong,
        message=refused.refusal if refused else None,
        kinds=sorted(engine.runners),
        zones=sorted(zone_names()),
        overlaps=[item.value for item in Overlap],
        misfires=[item.value for item in Misfire],
        zone=form.get("timezone"),
        calendars=await calendar_names(request, caller),
        preview=await preview_of(request, caller, form),
        impact=await impact_of(request, caller, form, old["id"] if old else None),
        schema=await schema_of(request, caller.org_id, wanted),
    )


async def targets_of(request: Request, caller: Caller) -> list[tuple[str, str]]:
    """What a schedule can run, with a word about it, as far as the caller may read it."""
    engine, org_id, targets = engine_of(request), caller.org_id, list[tuple[str, str]]()
    if caller.reads("tasks"):
        tasks, _ = await engine.db.read(tasks_reports.list_tasks, org_id, limit=MAX_OFFERED_TARGETS)
        targets += [(task["name"], "task") for task in tasks]
    if caller.reads("graphs") and "graph" in engine.runners:
        targets += [(graph["id"], "graph") for graph in await GraphManager(engine, org_id).list_all()]
    if caller.reads("pipelines"):
        tables, _ = await engine.db.read(pipelines_store.list_pipelines, org_id, limit=MAX_OFFERED_TARGETS)
        targets += [(table["path"], "pipeline") for table in tables]
    if caller.reads("server-instances"):
        servers, _ = await engine.db.read(host_reports.list_servers, org_id, limit=MAX_OFFERED_TARGETS, cursor=None)
        targets += [(server["id"], server["name"]) for server in servers]
    return targets


async def calendar_names(request: Request, caller: Caller) -> list[str]:
    """Return the names of the calendars that a schedule can follow, as far as the caller may read them."""
    if not caller.reads("calendars"):
        return []
    return [item["name"] for item in await engine_of(request).db.read(calendar_reports.list_calendars, caller.org_id)]


async def typed(request: Request, caller: Caller, form: Mapping[str, str]) -> Record:
    """Return the body of the form: only fields of the chosen schedule type, parameters typed by their schema."""
    body = body_of({name: text for name, text in form.items() if not name.startswith("input.")}, zone_of(form), SCHEMA)
    body = {
        name: value
        for name, value in body.items()
        if name not in TYPES_OF or body.get("schedule_type") in TYPES_OF[name]
    }
    schema = await schema_of(request, caller.org_id, {"kind": form.get("kind"), "target": form.get("target", "")})
    if schema is not None and any(name.startswith("input.") for name in form):
        body["input"] = by_schema(form, schema) or None
    return body


async def preview_of(request: Request, caller: Caller, form: Mapping[str, str]) -> Record | None:
    """Return the next slots of the form's timing, or its error; None while the timing is empty."""
    kind = form.get("schedule_type", "")
    typed = {
        name: form[name]
        for name in timing_form.TimingFields.model_fields
        if form.get(name) and (name not in TYPES_OF or kind in TYPES_OF[name])
    }
    if not any(name in timing_form.TRIGGER_OF for name in typed):
        return None
    engine = engine_of(request)
    now, known = engine.clock.now(), await engine.calendars_named(caller.org_id, [form])

    tags = [tag.strip() for tag in form.get("tags", "").split(",")]
    scope = (form.get("kind") or None, form.get("queue") or "default", tags)
    windows = await engine.db.read(freeze_reports.windows_ahead, caller.org_id, now, *scope)

    def search() -> Record:
        body = body_of(typed, zone_of(form), SCHEMA)
        timing = timing_form.parse_timing(body, now=now, calendars=known, seed=form.get("name", ""))
        return views.preview_slots(timing, now, PREVIEW_SLOTS, now, now, windows)

    try:
        return {**await compute(search), "refusal": None}
    except Invalid as error:
        return {"refusal": error.message, "slots": [], "warnings": [], "words": None}


async def impact_of(
    request: Request, caller: Caller, form: Mapping[str, str], schedule_id: str | None
) -> Record | None:
    """Return what saving the form would change; None for a new schedule, without changes, or if it is invalid, which
    the preview or the refusal of the form says."""
    if schedule_id is None:
        return None
    try:
        body = await typed(request, caller, form)
        impact = await impact_of_edit(engine_of(request), caller.org_id, schedule_id, body, whole=True)
    except (Invalid, NotFound):
        return None
    return impact if impact["fields"] else None


def written(schedule: Record) -> dict[str, str]:
    """Return a schedule as form fields."""
    nested = {
        f"{name}.{key}": value
        for name in ("retry", "input")
        if isinstance(schedule[name], dict)
        for key, value in schedule[name].items()
    }
    plain = {
        name: schedule[name]
        for name in schedule_form.ScheduleBody.model_fields
        if schedule.get(name) is not None and name not in ("retry", *LISTS)
    }
    return {name: text_of(value) for name, value in {**plain, **nested}.items()} | {
        name: ", ".join(schedule[name]) for name in LISTS
    }


def text_of(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def zone_of(form: Mapping[str, str]) -> str:
    return form["timezone"] if form.get("timezone") in zone_names() else "UTC"


def problem(error: Invalid) -> Record:
    """Return an error as problem details of the API."""
    return {
        "detail": error.message,
        "errors": [{"field": field_error.field, "message": field_error.right} for field_error in error.all],
    }
