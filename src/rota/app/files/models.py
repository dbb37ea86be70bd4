"""What a file describes: one model per resource, made from the bodies of the API, and their JSON Schema."""

from typing import Annotated, Any

from pydantic import Field
from pydantic.json_schema import models_json_schema

from rota.billing.api.models import GrantBody
from rota.core.resource_forms import CalendarBody, QueueBody
from rota.core.schedule_form import EXAMPLE, ScheduleBody
from rota.core.wire import Name, RequestBody, example
from rota.kinds.alarms.models import AlarmBody
from rota.kinds.pipelines.models import PipelineBody
from rota.kinds.tasks.models import TaskBody

SCHEMA_ID = "https://rota-scheduler.readthedocs.io/files.schema.json"


class FileSchedule(ScheduleBody):
    """A schedule. `grant` is the name of a grant in these files, instead of `grant_id`."""

    model_config = example(EXAMPLE)

    name: Name
    grant: Name | None = None


class FileTask(TaskBody):
    """A stored task: a command, or with `task_type: python` a function of a program."""

    name: Name


class FileGrant(GrantBody):
    """A grant. Its name is known only in files; the installation knows it by its content, which never changes."""

    name: Annotated[Name, Field(description="by which schedules in these files name it")]


class FileQueue(QueueBody):
    """Limits of a queue; `paused` stays if it is absent."""

    name: Name


class FileCalendar(CalendarBody):
    """A calendar: one of `holidays`, `exchange`, `ical`, `dates`."""


class FilePipeline(PipelineBody):
    """A pipeline."""


class FileAlarm(AlarmBody):
    """An alarm. The channels in `notify` are not in files, since their addresses are secret: create them first."""


MODELS: dict[str, type[RequestBody]] = {  # by the key in files, in the order in which they are applied
    "queues": FileQueue,
    "calendars": FileCalendar,
    "tasks": FileTask,
    "pipelines": FilePipeline,
    "grants": FileGrant,
    "schedules": FileSchedule,
    "alarms": FileAlarm,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    schemas, definitions = models_json_schema([(model, "validation") for model in MODELS.values()])
    properties = {
        name: {"type": "array", "items": schemas[model, "validation"], "description": (model.__doc__ or "").strip()}
        for name, model in MODELS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Rota: resources of an installation",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        **definitions,
    }
