"""Bodies and answers of the routes of pipelines, their triggers and webhooks."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.timing_form import Expression, Zone
from rota.core.wire import SPAN_SECONDS_MAX, Answer, At, Id, RequestBody, StorableText, checked, example
from rota.kinds.pipelines.increments import read_column, read_day
from rota.kinds.pipelines.registry import read_path, slug

SQL_CHARACTERS = 100_000
UPSTREAMS_MAX = 100
PATH_SCHEMA = {"type": "string", "examples": ["sales/silver/daily_totals"]}
SLUG_SCHEMA = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,59}$"}


def read_code(value: object, field: str) -> str:
    return parse.text(value, field, SQL_CHARACTERS, required=True)


def read_paths(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= UPSTREAMS_MAX:
        raise Invalid(field, value, f"is not a list of 1 to {UPSTREAMS_MAX} paths of pipelines")
    return sorted({read_path(path, field) for path in value})


Slug = Annotated[str, PlainValidator(checked(slug)), WithJsonSchema(SLUG_SCHEMA)]
Layer = Literal["bronze", "silver", "gold"]
PipelineType = Literal["sql", "python"]
TriggerType = Literal["pipeline_success", "cron_dependency", "webhook"]
Code = Annotated[
    str,
    PlainValidator(checked(read_code)),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": SQL_CHARACTERS}),
]
ColumnName = Annotated[
    str,
    PlainValidator(checked(read_column)),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,59}$"}),
]
Day = Annotated[date, PlainValidator(checked(read_day)), WithJsonSchema({"type": "string", "format": "date"})]
Upstream = Annotated[str, PlainValidator(checked(read_path)), WithJsonSchema(PATH_SCHEMA)]
Upstreams = Annotated[
    list[str],
    PlainValidator(checked(read_paths)),
    WithJsonSchema({"type": "array", "items": PATH_SCHEMA, "minItems": 1, "maxItems": UPSTREAMS_MAX}),
]
Cooldown = Annotated[int, Field(ge=0, le=SPAN_SECONDS_MAX)]
PipelinePath = Annotated[str, WithJsonSchema(PATH_SCHEMA)]
SlugText = Annotated[str, WithJsonSchema(SLUG_SCHEMA)]


# pipelines


class PipelineChanges(RequestBody):
    """A pipeline in place of another: its type stays if it is absent, other fields get their defaults."""

    model_config = example({"sql": "SELECT 1 AS one"})

    type: PipelineType | None = None
    sql: Code | None = None
    function: Code | None = None
    description: Annotated[str, Field(max_length=2000), StorableText] | None = None
    max_runs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_age_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    append_by: ColumnName | None = None
    merge_by: Annotated[list[ColumnName], Field(min_length=1, max_length=20)] | None = None
    partition_by: ColumnName | None = None


class PipelineBody(PipelineChanges):
    """A new pipeline."""

    model_config = example(
        {
            "namespace": "sales", "layer": "silver", "name": "daily_totals", "type": "sql",
            "sql": "SELECT day, sum(amount) AS total FROM sales.bronze.orders GROUP BY day",
        }
    )  # fmt: skip

    namespace: Slug
    layer: Layer
    name: Slug


class Pipeline(Answer):
    id: Id
    path: PipelinePath
    namespace: SlugText
    layer: Layer
    name: SlugText
    type: PipelineType
    sql: str | None
    function: str | None
    reads: list[PipelinePath]
    description: str
    owner_id: Id | None
    version: int
    max_runs: int | None
    max_age_days: int | None
    append_by: str | None
    merge_by: list[str] | None
    partition_by: str | None
    source: str
    created_at: At
    updated_at: At


class PipelineVersion(Answer):
    version: int
    type: PipelineType
    sql: str | None
    function: str | None
    append_by: str | None
    merge_by: list[str] | None
    partition_by: str | None
    created_at: At


class PipelineRunBody(RequestBody):
    model_config = example({})

    input: Annotated[object, WithJsonSchema({"type": "object"})] | None = None  # the runner validates it


class PipelineBackfillBody(RequestBody):
    """The first and the last day of a backfill."""

    model_config = example({"from": "2026-01-01", "to": "2026-01-03"})

    first: Day = Field(alias="from")
    last: Day = Field(alias="to")


class JobIds(Answer):
    job_ids: list[Id]


class DraftBody(RequestBody):
    model_config = example({"sql": "SELECT 1 AS one"})

    sql: Code | None = None


class Column(Answer):
    name: str
    type: str


class PipelinePreview(Answer):
    columns: list[Column]
    rows: list[list[object]]


class Validation(Answer):
    ok: bool
    error: str | None
    reads: list[PipelinePath]
    columns: list[Column]


class PipelineNode(Answer):
    path: PipelinePath
    namespace: SlugText
    layer: Layer
    name: SlugText
    type: str


class PipelineEdge(Answer):
    upstream: PipelinePath = Field(alias="from")
    to: PipelinePath
    kind: Literal["reads", "pipeline_success", "cron_dependency", "webhook"]


class PipelineGraph(Answer):
    nodes: list[PipelineNode]
    edges: list[PipelineEdge]


class Namespace(Answer):
    name: SlugText
    pipelines: int


# triggers


class TriggerBody(RequestBody):
    model_config = example({"type": "pipeline_success", "upstream": "sales/silver/daily_totals"})

    type: TriggerType
    upstream: Upstream | None = None
    upstreams: Upstreams | None = None
    cron_expression: Expression | None = None
    timezone: Zone | None = None
    cooldown_seconds: Cooldown | None = None


class TriggerChanges(RequestBody):
    model_config = example({"enabled": False})

    enabled: bool | None = None
    cooldown_seconds: Cooldown | None = None


class Trigger(Answer):
    id: Id
    type: TriggerType
    upstreams: list[PipelinePath]
    cron_expression: str | None
    cooldown_seconds: int
    enabled: bool
    last_triggered_at: At | None
    last_job_id: Id | None
    source: str
    created_at: At


class NewTrigger(Trigger):
    token: str | None
