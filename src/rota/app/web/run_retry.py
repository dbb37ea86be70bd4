"""Page that retries a run with another input: a form of the input that it had, checked like one of the API."""

from collections.abc import Mapping

import orjson
from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.app.web.schedules import schema_of
from rota.core.errors import Conflict, Invalid
from rota.core.redact import HIDDEN, redacted
from rota.db.paging import Record
from rota.engine import runs
from rota.engine.records import RunRow
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.actions import Answer, call_api
from rota.frame.web.forms import by_schema, kind_of, read_json
from rota.frame.web.pages import engine_of, flash, page
from rota.frame.web.sessions import Viewer, read_form
from rota.reports import jobs as job_reports

router = APIRouter()


@router.get("/runs/{run_id}/retry")
async def edit(request: Request, caller: Viewer, run_id: str) -> Response:
    """Show the form, with the input of the run in it."""
    run = await ended_run(request, caller, run_id)
    schema = await schema_of(request, caller.org_id, {"kind": run.kind, "target": run.target})
    return await form_page(request, caller, run, schema, fields_of(redacted(run.input), schema))


@router.post("/runs/{run_id}/retry")
async def retry(request: Request, caller: Viewer, run_id: str) -> Response:
    """Retry the run, or show the form again with what is wrong."""
    run, form = await ended_run(request, caller, run_id), await read_form(request)
    schema = await schema_of(request, caller.org_id, {"kind": run.kind, "target": run.target})
    try:
        shown = redacted(run.input)
        payload = restored(input_of(form, schema, shown), shown, run.input)
    except Invalid as error:
        problem = {"detail": error.message, "errors": [{"field": error.field, "message": error.message}]}
        return await form_page(request, caller, run, schema, form, Answer(422, problem))
    body: Record = {} if payload == run.input else {"input": payload}
    if form.get("from_step"):
        body["from_step"] = form["from_step"]
    answer = await call_api(request, "POST", f"/runs/{run_id}/$retry", body)
    if answer.refusal is not None:
        return await form_page(request, caller, run, schema, form, answer)
    response = RedirectResponse(f"/runs/{answer.data['job_id']}", 303)
    flash(request, response, "Retry requested" + (" with another input" if "input" in body else ""))
    return response


async def ended_run(request: Request, caller: Caller, run_id: str) -> RunRow:
    """Return a run that ended. Raises NotFound, Conflict."""
    db = engine_of(request).db
    run = await db.read(runs.get, caller.org_id, run_id)
    if run is None:
        await db.read(job_reports.job_id_of, caller.org_id, run_id)
        raise Conflict(f"run {run_id} has not ended; cancel it first")
    return run


async def form_page(
    request: Request,
    caller: Caller,
    run: RunRow,
    schema: Record | None,
    form: Mapping[str, str],
    refused: Answer | None = None,
) -> Response:
    job = await reports_of(request, caller).read(job_reports.job_with_attempts, caller.org_id, run.job_id)
    wrong = {item["field"]: item["message"] for item in (refused.data or {}).get("errors", [])} if refused else {}
    return page(
        request,
        "run_retry.html",
        refused.status if refused else 200,
        run=run,
        shown=job["attempts"][-1],
        steps=[] if job["living"] else job["steps"],
        schema=schema if schema is not None and fits(redacted(run.input), schema) else None,
        form=form,
        wrong=wrong,
        message=refused.refusal if refused else None,
        hidden=HIDDEN in orjson.dumps(redacted(run.input), default=str).decode(),
    )


def fits(value: object, schema: Record) -> bool:
    """Return whether a form of the schema has a field for each value of an input."""
    properties = schema.get("properties", {})
    return bool(properties) and (value is None or (isinstance(value, dict) and value.keys() <= properties.keys()))


def fields_of(value: object, schema: Record | None) -> dict[str, str]:
    """Return the fields of the form for an input: one for each parameter, else JSON."""
    if schema is None or not fits(value, schema):
        return {"input": "" if value is None else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()}
    values = value if isinstance(value, dict) else {}
    return {f"input.{name}": text_of(member, schema["properties"][name]) for name, member in values.items()}


def text_of(value: object, schema: Record) -> str:
    """Return a value as text that `by_schema` reads as the same value."""
    if value is None:
        return ""
    if isinstance(value, str) and kind_of(schema) == "string":
        return value
    return orjson.dumps(value).decode()


def input_of(form: Mapping[str, str], schema: Record | None, shown: object) -> object:
    """Return the input in the form; an empty field that was empty stays as it was, any other is left out. Raises
    Invalid for text that is not JSON."""
    if schema is not None and "input" not in form:
        values = by_schema(form, schema)
        before = shown if isinstance(shown, dict) else {}
        values |= {name: value for name, value in before.items() if value in (None, "") and name not in values}
        return values or None
    text = form.get("input", "")
    return read_json("input", text) if text.strip() else None


def restored(value: object, shown: object, original: object, path: str = "input") -> object:
    """Return an edited input with the secrets back that were hidden in `shown` and not edited. Raises Invalid for a
    hidden secret that stands where it did not before."""
    if value == shown:
        return original
    if isinstance(value, dict):
        pairs = {name: member_of(shown, original, name) for name in value}
        return {name: restored(member, *pairs[name], f"{path}.{name}") for name, member in value.items()}
    if isinstance(value, list):
        members = [member_of(shown, original, place) for place in range(len(value))]
        return [restored(member, *members[place], f"{path}.{place}") for place, member in enumerate(value)]
    if isinstance(value, str) and HIDDEN in value:
        raise Invalid(path, value, f"contains {HIDDEN}, which stands for a secret: write it out")
    return value


def member_of(shown: object, original: object, key: str | int) -> tuple[object, object]:
    """Return a member of an input as it is shown and as it is; a value that equals no other if it has none."""
    if isinstance(key, str) and isinstance(shown, dict) and isinstance(original, dict) and key in original:
        return shown[key], original[key]
    if isinstance(key, int) and isinstance(shown, list) and isinstance(original, list) and key < len(original):
        return shown[key], original[key]
    return object(), None
