"""Parts of the OpenAPI document of routes whose bodies and answers have no models yet; see CONTRIBUTING.md.

`ROUTES` has a line per route. A slice that is converted to models loses its entries here.
"""

from typing import Any

from pydantic import BaseModel

from rota.app.api.shared_openapi import header, refusals, without_noise
from rota.core.schedule_form import EXAMPLE, ScheduleChanges
from rota.frame.http.answers import Schedule

Schema = dict[str, Any]


def a(kind: str, **more: Any) -> Schema:
    return {"type": kind, **more}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    kind = schema.get("type")
    return {**schema, "type": [kind, "null"]} if isinstance(kind, str) and "enum" not in schema else one_of(schema)


def one_of(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def among(names: Any) -> Schema:
    return a("string", enum=[str(name) for name in names])


def listed(items: Schema) -> Schema:
    return a("array", items=items)


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def gives(example: Any = None, /, **fields: Schema) -> Schema:
    """A record that is answered: always all of its fields, and no others."""
    told = a("object", properties=fields, required=list(fields), additionalProperties=False)
    return told if example is None else {**told, "examples": [example]}


def takes(example: Any, needed: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """A body: other fields are refused."""
    told = a("object", properties=fields, additionalProperties=False, examples=[example])
    return {**told, "required": list(needed)} if needed else told


def properties(model: type[BaseModel]) -> dict[str, Schema]:
    """Return the schemas of a model's fields."""
    fields: dict[str, Schema] = model.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    return {name: without_noise(schema) for name, schema in fields.items()}


NEXT = maybe(a("string", description="`cursor` of the next page"))


def page(name: str) -> Schema:
    return gives(items=listed(ref(name)), next_cursor=NEXT)


ANY: Schema = {}
TEXT, WHOLE, NUMBER, FLAG = a("string"), a("integer"), a("number"), a("boolean")
ID = a("string", description="a ULID", examples=["01KQRS3Z5T8M0A2N6Y4V7W9XCD"])
AT = a("string", format="date-time", examples=["2026-05-04T09:00:00+00:00"])
NAME = a("string", minLength=1, maxLength=200, examples=["nightly"])
RETRY = {"$ref": "#/components/schemas/Retry"}
TASK = {
    "id": ID,
    "name": NAME,
    "command": a("string", minLength=1, maxLength=100_000),
    "task_type": among(("shell", "python")),
    "parameters": a("object"),
    "enabled": FLAG,
    "retry": RETRY,
    "timeout": {
        "type": ["string", "number"],
        "description": "a span of time, `30s`, or seconds",
        "examples": ["30s", 30],
    },
    "isolation": among(("none", "process")),
    "cache_ttl": {
        "type": ["string", "number"],
        "description": "how long a result is used again, `5m`, or seconds",
        "examples": ["5m"],
    },
    "env": {"description": "variables, or names of those to let through", "examples": [{"A": "b"}, ["DATABASE_URL"]]},
    "cwd": a("string", minLength=1, maxLength=4096),
    "stdin": TEXT,
    "memory_mb": a("integer", minimum=16, maximum=1_048_576),
    "delete_with_schedule": a("boolean", description="whether the task goes with the last schedule that runs it"),
}
SLUG = a("string", pattern="^[a-z][a-z0-9_-]{0,59}$")
LAYER = among(("bronze", "silver", "gold"))
PATH = a("string", examples=["sales/silver/daily_totals"])
COLUMN = gives(name=TEXT, type=TEXT)
PIPELINE = {
    "type": maybe(among(("sql", "python"))), "sql": maybe(a("string", maxLength=100_000)), "function": maybe(TEXT),
    "description": maybe(a("string", maxLength=2000)), "max_runs": maybe(a("integer", minimum=1, maximum=1_000_000)),
    "max_age_days": maybe(a("integer", minimum=1, maximum=36_500)),
}  # fmt: skip
TRIGGERS = ("pipeline_success", "cron_dependency", "webhook")
TRIGGER = {
    "id": ID, "type": among(TRIGGERS), "upstreams": listed(PATH), "cron_expression": maybe(TEXT),
    "cooldown_seconds": WHOLE, "enabled": FLAG, "last_triggered_at": maybe(AT), "last_job_id": maybe(ID),
    "source": TEXT, "created_at": AT,
}  # fmt: skip

SCHEMAS: dict[str, Schema] = {
    # tasks
    "TaskBody": takes(
        {"name": "disk", "command": "df -h", "timeout": "30s"}, ("command",),
        **{name: maybe(schema) for name, schema in TASK.items()},
    ),
    "TaskChanges": takes({"enabled": False}, **{name: maybe(schema) for name, schema in TASK.items() if name != "id"}),
    "Task": gives(
        **{name: maybe(schema) for name, schema in TASK.items()} | {"id": ID, "name": NAME, "enabled": FLAG},
        source=TEXT, version=TEXT, created_at=AT, updated_at=AT,
    ),
    "ExecuteBody": takes({"parameters": {"day": "today"}}, parameters=maybe(a("object"))),
    "Executed": gives(job_id=ID, message=TEXT),
    "Parameters": a("object", description="a JSON Schema"),
    # graphs
    "Graphs": gives(
        items=listed(
            gives(id=TEXT, provider=TEXT, name=NAME, version=maybe(TEXT), description=maybe(TEXT), live=FLAG)
        ),
        next_cursor=NEXT,
    ),
    "GraphBody": takes(
        {"input": {"messages": [{"role": "user", "content": "spring"}]}}, input=maybe(a("object")), grant_id=maybe(ID),
    ),
    "GraphIds": gives(items=listed(gives(id=TEXT))),
    "GraphOrder": takes(
        {"grant_id": "01KQRS3Z5T8M0A2N6Y4V7W9XCD", "input": {"messages": []}}, ("grant_id",),
        grant_id=ID, input=maybe(a("object")), run_id=maybe(ID),
    ),
    "GraphOutcome": a(
        "object", properties={"ok": FLAG, "run_id": ID, "trace_id": TEXT, "error_code": TEXT},
        required=["ok", "run_id", "trace_id"], additionalProperties=False,
    ),
    # pipelines
    "PipelineBody": takes(
        {"namespace": "sales", "layer": "silver", "name": "daily_totals", "type": "sql",
         "sql": "SELECT day, sum(amount) AS total FROM sales.bronze.orders GROUP BY day"},
        ("namespace", "layer", "name"), namespace=SLUG, layer=LAYER, name=SLUG, **PIPELINE,
    ),
    "PipelineChanges": takes({"sql": "SELECT 1 AS one"}, **PIPELINE),
    "Pipeline": gives(
        id=ID, path=PATH, namespace=SLUG, layer=LAYER, name=SLUG, type=among(("sql", "python")), sql=maybe(TEXT),
        function=maybe(TEXT), reads=listed(PATH), description=TEXT, owner_id=maybe(ID), version=WHOLE,
        max_runs=maybe(WHOLE), max_age_days=maybe(WHOLE), source=TEXT, created_at=AT, updated_at=AT,
    ),
    "PipelineVersions": gives(
        items=listed(
            gives(version=WHOLE, type=among(("sql", "python")), sql=maybe(TEXT), function=maybe(TEXT), created_at=AT)
        ),
        next_cursor=NEXT,
    ),
    "PipelineRunBody": takes({}, input=maybe(a("object"))),
    "DraftBody": takes({"sql": "SELECT 1 AS one"}, sql=maybe(TEXT)),
    "PipelinePreview": gives(columns=listed(COLUMN), rows=listed(listed(ANY))),
    "Validation": gives(ok=FLAG, error=maybe(TEXT), reads=listed(PATH), columns=listed(COLUMN)),
    "PipelineGraph": gives(
        nodes=listed(gives(path=PATH, namespace=SLUG, layer=LAYER, name=SLUG, type=TEXT)),
        edges=listed(gives(**{"from": PATH, "to": PATH, "kind": among(("reads", *TRIGGERS))})),
    ),
    "Namespaces": gives(items=listed(gives(name=SLUG, pipelines=WHOLE)), next_cursor=NEXT),
    "TriggerBody": takes(
        {"type": "pipeline_success", "upstream": "sales/silver/daily_totals"}, ("type",), type=among(TRIGGERS),
        upstream=maybe(PATH), upstreams=maybe(listed(PATH)), cron_expression=maybe(TEXT), timezone=maybe(TEXT),
        cooldown_seconds=maybe(a("integer", minimum=0)),
    ),
    "TriggerChanges": takes(
        {"enabled": False}, enabled=maybe(FLAG), cooldown_seconds=maybe(a("integer", minimum=0))
    ),
    "Trigger": gives(**TRIGGER),
    "NewTrigger": gives(**TRIGGER, token=maybe(TEXT)),
    "Triggers": gives(items=listed(gives(**TRIGGER)), next_cursor=NEXT),
}  # fmt: skip
OF_TASK = {name for name in ScheduleChanges.model_fields if name not in ("kind", "target")}
SCHEMAS["TaskScheduleBody"] = takes(
    {name: value for name, value in EXAMPLE.items() if name in OF_TASK},
    **{name: schema for name, schema in properties(ScheduleChanges).items() if name in OF_TASK},
)
SCHEMAS["TaskSchedule"] = gives(**properties(Schedule), task_id=ID)
PAGED = (*("Task", "TaskSchedule", "Pipeline"),)
for _name in PAGED:
    SCHEMAS[f"{_name}Page"] = page(_name)

ROUTES: dict[str, tuple[str | None, int, str | None]] = {  # what it takes, its status, what it gives
    "GET /tasks": (None, 200, "TaskPage"),
    "POST /tasks": ("TaskBody", 201, "Task"),
    "GET /tasks/{key}": (None, 200, "Task"),
    "PUT /tasks/{key}": ("TaskBody", 200, "Task"),
    "PATCH /tasks/{key}": ("TaskChanges", 200, "Task"),
    "DELETE /tasks/{key}": (None, 204, None),
    "GET /tasks/{key}/$schema": (None, 200, "Parameters"),
    "POST /tasks/{key}/$execute": ("ExecuteBody", 202, "Executed"),
    "POST /tasks/{key}/$schedule": ("TaskScheduleBody", 201, "TaskSchedule"),
    "GET /tasks/{key}/$schedules": (None, 200, "TaskSchedulePage"),
    "PATCH /tasks/{key}/$schedules/{schedule_id}": ("TaskScheduleBody", 200, "TaskSchedule"),
    "DELETE /tasks/{key}/$schedules/{schedule_id}": (None, 204, None),
    "GET /graphs": (None, 200, "Graphs"),
    "POST /graphs/{graph_id}/$run": ("GraphBody", 202, "JobRef"),
    "POST /pipelines": ("PipelineBody", 201, "Pipeline"),
    "GET /pipelines": (None, 200, "PipelinePage"),
    "GET /pipelines/$graph": (None, 200, "PipelineGraph"),
    "GET /pipelines/$namespaces": (None, 200, "Namespaces"),
    "GET /pipelines/{namespace}/{layer}/{name}": (None, 200, "Pipeline"),
    "PUT /pipelines/{namespace}/{layer}/{name}": ("PipelineChanges", 200, "Pipeline"),
    "DELETE /pipelines/{namespace}/{layer}/{name}": (None, 204, None),
    "GET /pipelines/{namespace}/{layer}/{name}/versions": (None, 200, "PipelineVersions"),
    "POST /pipelines/{namespace}/{layer}/{name}/$run": ("PipelineRunBody", 202, "JobRef"),
    "POST /pipelines/{namespace}/{layer}/{name}/$preview": ("DraftBody", 200, "PipelinePreview"),
    "POST /pipelines/{namespace}/{layer}/{name}/$validate": ("DraftBody", 200, "Validation"),
    "GET /pipelines/{namespace}/{layer}/{name}/triggers": (None, 200, "Triggers"),
    "POST /pipelines/{namespace}/{layer}/{name}/triggers": ("TriggerBody", 201, "NewTrigger"),
    "PATCH /pipelines/{namespace}/{layer}/{name}/triggers/{trigger_id}": ("TriggerChanges", 200, "Trigger"),
    "DELETE /pipelines/{namespace}/{layer}/{name}/triggers/{trigger_id}": (None, 204, None),
    "POST /webhooks": (None, 202, "JobRef"),
}
OPTIONAL = (  # bodies that may be left out
    *("PipelineRunBody", "DraftBody", "GraphBody", "ExecuteBody"),
)


def complete_by_hand(operation: Schema, method: str, path: str) -> None:
    """Add the body and the answer of a route that has no models yet."""
    if f"{method} {path}" not in ROUTES:
        return
    body, status, answer = ROUTES[f"{method} {path}"]
    content = {"content": {"application/json": {"schema": ref(answer)}}} if answer else {}
    operation["responses"] = {str(status): content}
    if body is not None:
        operation["requestBody"] = {
            "required": body not in OPTIONAL,
            "content": {"application/json": {"schema": ref(body)}},
        }


def complete_internal(operation: Schema, method: str) -> None:
    """Add what services of our own send each other."""
    takes_body = method == "POST"
    schema = ref("GraphOutcome" if takes_body else "GraphIds")
    good = {"description": "what was asked for", "content": {"application/json": {"schema": schema}}}
    problems = [400, 401, 403, 404, 409, 413, 415, 422, 429, 503] if takes_body else [401, 429, 503]
    operation["responses"] = {"200": good, **refusals(problems)}
    operation["security"] = [{"bearer": []}]
    if takes_body:
        content = {"schema": ref("GraphOrder"), "example": SCHEMAS["GraphOrder"]["examples"][0]}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
        operation.setdefault("parameters", []).append(header("Idempotency-Key", required=True))
