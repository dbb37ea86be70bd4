"""Writes `rota/client_types.py`: the client's types, from the models of the API's answers. `make clients` runs it."""

from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from rota.app.api.models import Line, Run
from rota.core.states import Status
from rota.core.wire import annotations_of
from rota.frame.http.answers import FieldError, Job, Problem, Schedule

MODELS: dict[str, type[BaseModel]] = {
    "FieldError": FieldError, "Problem": Problem, "Schedule": Schedule, "Run": Run, "Job": Job, "LogLine": Line,
}  # fmt: skip
PARTIAL = ("Problem",)  # the client makes one itself if the server sent none
HEAD = '''"""Types of the client's answers, generated from the API's models by `make clients`."""

from typing import Any, Literal, NotRequired, TypedDict

Json = dict[str, Any]
'''
PAGE = """

class Page(TypedDict):
    items: list[Any]
    next_cursor: str | None
"""


def source() -> str:
    """Return the source of the module."""
    status = f"Status = {literal(list(Status))}\n"
    return HEAD + status + "".join(typed_dict(name, model) for name, model in MODELS.items()) + PAGE


def typed_dict(name: str, model: type[BaseModel]) -> str:
    lines = [f"\n\nclass {name}(TypedDict{', total=False' if name in PARTIAL else ''}):"]
    for field, annotation in annotations_of(model).items():
        kind = written(annotation)
        always = name in PARTIAL or model.model_fields[field].is_required()
        lines.append(f"    {field}: {kind if always else f'NotRequired[{kind}]'}")
    return "\n".join(lines) + "\n"


def written(annotation: Any) -> str:
    """Return an annotation as the client writes it: JSON has no enumerations, timestamps or models."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is object:
        return "Any"
    if origin is Annotated:
        return written(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(alternatives(parts)))
    if origin is list:
        return f"list[{written(parts[0])}]"
    if origin is Literal:
        return literal(parts)
    if annotation is Status:
        return "Status"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return literal(list(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return next((name for name, model in MODELS.items() if model is annotation), "Json")
    return {datetime: "str", NoneType: "None", Any: "Any"}.get(annotation) or annotation.__name__


def alternatives(parts: tuple[Any, ...]) -> Iterator[str]:
    texts = [written(part) for part in parts]
    yield from (["Any"] if "Any" in texts else texts)


def literal(values: Any) -> str:
    return "Literal[" + ", ".join(f'"{value}"' for value in values) + "]"
