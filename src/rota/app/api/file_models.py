"""Bodies and answers of the routes of files."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from rota.app.api.impact_models import FieldChange, SlotChanges
from rota.core.wire import Answer, RequestBody, StorableText, example

Resources = Annotated[
    dict[str, list[dict[str, object]]],
    WithJsonSchema(
        {
            "type": "object",
            "description": "entries by resource, as `rota schema` describes them",
            "additionalProperties": {"type": "array", "items": {"type": "object"}},
        }
    ),
]
EXAMPLE = {"resources": {"queues": [{"name": "reports", "max_running": 2}]}}


class PlanBody(RequestBody):
    model_config = example(EXAMPLE)

    resources: Resources
    prune: bool | None = None


class ApplyBody(PlanBody):
    """`version` is that of a plan: 412 if the installation has changed since."""

    model_config = example(EXAMPLE)

    version: Annotated[str, Field(max_length=100), StorableText] | None = None


class ResourceChange(Answer):
    resource: str
    name: str
    action: Literal["create", "change", "pause", "left", "none"]
    fields: list[FieldChange]
    drift: list[str]
    note: str | None
    slots: SlotChanges | None


class Plan(Answer):
    version: str
    changes: list[ResourceChange]
    unchanged: int


class LeftOut(Answer):
    resource: str
    name: str
    reason: str


class Export(Answer):
    resources: dict[str, list[dict[str, object]]]
    left_out: list[LeftOut]
