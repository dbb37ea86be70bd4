"""The OpenAPI document: what FastAPI makes of the models, and what all routes share.

Refusals, security and headers follow from method and path.
"""

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rota.app.api.models import Event
from rota.app.api.shared_openapi import REF, Schema, header, refusals, without_noise
from rota.frame.http.answers import Health, Problem
from rota.frame.http.models import NoBody

ROOT, INTERNAL, AGENT = "/api/v1", "/api/internal", "/api/agent"
STREAMS = ("GET /events", "GET /jobs/{job_id}/$stream", "GET /runs/{run_id}/logs")
OPEN = ("/health/live", "/health/ready", "/metrics")
NAMING = (
    "/slots/$why",
    "/grants",
    "/webhooks",
    "/server-instances",
    "/host-jobs",
    "/batches",
)  # 404 for what they name


def describe(app: FastAPI) -> None:
    """Make the app return this document."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def document(app: FastAPI) -> Schema:
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    keys = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    of_models = made.get("components", {}).get("schemas", {})
    shared = models_json_schema([(model, "validation") for model in (Problem, Event, Health)], ref_template=REF)[1]
    of_models.pop(NoBody.__name__, None)
    components = {**of_models, **shared["$defs"]}
    made["components"] = {"schemas": {name: plain(schema) for name, schema in components.items()}}
    made["components"]["securitySchemes"] = keys
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            if path.startswith(ROOT):
                complete(operation, method.upper(), path.removeprefix(ROOT), components)
            elif path.startswith(INTERNAL):
                complete_internal(operation, method.upper(), components)
            elif path.startswith(AGENT):
                complete_agent(operation, path, components)
            elif path in OPEN:
                complete_open(operation, path)
    return made


def plain(schema: Schema) -> Schema:
    """Return the schema of a model without titles and null defaults, which say nothing new."""
    properties = {name: without_noise(member) for name, member in schema.get("properties", {}).items()}
    return {**without_noise(schema), "properties": properties} if properties else without_noise(schema)


def complete(operation: Schema, method: str, path: str, components: Schema) -> None:
    """Add what follows from method and path: refusals, headers, security, streams."""
    problems, headers = [401, 403, 422, 429, 503], []
    if "{" in path or "schedule" in path or "billing" in path or path in NAMING:
        problems.append(404)
    if method != "GET":
        problems += [409, 413, 415]
    if method == "POST":
        headers.append("Idempotency-Key")
    if path in ("/schedules/{key}", "/tasks/{key}/$schedules/{schedule_id}") and method != "GET":
        problems.append(412)
        headers.append("If-Match")
    if path.endswith(("$run", "$execute")) or (method, path) in (("POST", "/host-jobs"), ("POST", "/jobs")):
        headers.append("traceparent")
    if path.endswith("$execute") or (method, path) == ("POST", "/jobs"):
        problems.append(400)
    if f"{method} {path}" in STREAMS:
        headers.append("Last-Event-ID")
    complete_body(operation, components)
    status, good = next(answer for answer in operation["responses"].items() if answer[0].startswith("2"))
    good["description"] = "done" if method != "GET" else "what was asked for"
    content = good.pop("content", {})
    if path.endswith("$content"):
        content = {"*/*": {"schema": {}}}
    if path == "/billing/usage":
        content["text/csv"] = {"schema": {"type": "string"}}
    if f"{method} {path}" in STREAMS:
        content = {kind: media for kind, media in content.items() if media.get("schema")}
        content["text/event-stream"] = {"schema": {"$ref": REF.format(model="Event")}}
    operation["responses"] = {status: {**good, "content": content} if content else good, **refusals(problems)}
    operation.setdefault("parameters", []).extend(header(name) for name in headers)
    if not operation["parameters"]:
        del operation["parameters"]
    operation["security"] = [{"bearer": []}, {"key": []}]


def complete_body(operation: Schema, components: Schema) -> None:
    """Add the example of the body's model; `NoBody` is not mentioned."""
    body = operation.get("requestBody")
    if body is None:
        return
    content = body["content"]["application/json"]
    model_ref = content["schema"]["$ref"]
    model = components.get(model_ref.rpartition("/")[2])
    if model is None:
        del operation["requestBody"]
        return
    body["content"] = {"application/json": {"schema": {"$ref": model_ref}, "example": model["examples"][0]}}
    body.setdefault("required", False)


def complete_agent(operation: Schema, path: str, components: Schema) -> None:
    """Add what follows from the path for routes of agents. Only pairing needs no key."""
    complete_body(operation, components)
    status, good = next(answer for answer in operation["responses"].items() if answer[0].startswith("2"))
    good["description"] = "done"
    operation["responses"] = {status: good, **refusals([401, 404, 409, 413, 415, 422, 429, 503])}
    operation["security"] = [] if path.endswith("pair") else [{"bearer": []}]


def complete_internal(operation: Schema, method: str, components: Schema) -> None:
    """Add what all routes for other services share."""
    has_body = method == "POST"
    problems = [400, 401, 403, 404, 409, 413, 415, 422, 429, 503] if has_body else [401, 429, 503]
    good = {**operation["responses"]["200"], "description": "what was asked for"}
    operation["responses"] = {"200": good, **refusals(problems)}
    operation["security"] = [{"bearer": []}]
    complete_body(operation, components)
    if has_body:
        operation["parameters"].append(header("Idempotency-Key", required=True))


def complete_open(operation: Schema, path: str) -> None:
    """Health and metrics, which need no key."""
    is_text = path == "/metrics"
    kind = "text/plain" if is_text else "application/json"
    schema = {"type": "string"} if is_text else {"$ref": REF.format(model="Health")}
    good = {"description": "what was asked for", "content": {kind: {"schema": schema}}}
    operation["responses"] = {"200": good}
    if is_text:
        operation["responses"] |= refusals([401, 429])
    if path == "/health/ready":
        operation["responses"]["503"] = {**good, "description": "something is not ready"}
