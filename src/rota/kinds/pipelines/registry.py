"""Paths of pipelines, and the pipelines that a program declares."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from rota.core.errors import Invalid
from rota.kinds.pipelines.increments import to_store

LAYERS = ("bronze", "silver", "gold")
SLUG = re.compile(r"[a-z][a-z0-9_-]{0,59}")


@dataclass(frozen=True, slots=True)
class DeclaredPipeline:
    """A pipeline that a program declares: a function, or SQL."""

    path: str
    function: Callable[..., object] | None
    sql: str | None
    reads: tuple[str, ...]  # of a function: its code does not show them
    after: tuple[str, ...]  # paths of its upstreams
    description: str
    increment: Mapping[str, Sequence[str]] | None = None


class PipelineOptions(TypedDict, total=False):
    """Options of a declared pipeline."""

    reads: Sequence[str]  # tables that a function reads
    after: str | Sequence[str]  # upstream pipelines
    description: str
    append_by: str  # a column that only grows: rows above its last value are added
    merge_by: str | Sequence[str]  # key columns: rows replace those with the same key
    partition_by: str  # a column of days: a run replaces one day


class PipelineRegistry:
    """The pipelines of a program, by path."""

    def __init__(self) -> None:
        self.pipelines: dict[str, DeclaredPipeline] = {}

    def add(
        self,
        path: str,
        function: Callable[..., object] | None,
        sql: str | None,
        **options: Unpack[PipelineOptions],
    ) -> None:
        """Declare a pipeline. Raises Invalid."""
        reads, after, description = options.get("reads", ()), options.get("after", ()), options.get("description", "")
        if read_path(path, "name") in self.pipelines:
            raise Invalid("name", path, "is already declared")
        if sql is not None and reads:
            raise Invalid("reads", reads, "is only for functions; the tables that SQL reads are found in it")
        upstreams = (after,) if isinstance(after, str) else tuple(after)
        first_line = description or (inspect.getdoc(function) or "").partition("\n")[0]
        self.pipelines[path] = DeclaredPipeline(
            path=path,
            function=function,
            sql=sql,
            reads=tuple(read_path(table, "reads") for table in reads),
            after=tuple(read_path(upstream, "after") for upstream in upstreams),
            description=first_line,
            increment=to_store(options.get("append_by"), options.get("merge_by"), options.get("partition_by")),
        )

    def functions(self) -> list[str]:
        return [path for path, pipeline in self.pipelines.items() if pipeline.function is not None]


def read_path(value: object, field: str) -> str:
    """Return a path `namespace/layer/name`. Raises Invalid."""
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) != 3:
        raise Invalid(field, value, "is not the path of a pipeline, like sales/silver/daily_totals")
    namespace, layer, name = parts
    return path_of(namespace, layer, name, field)


def path_of(namespace: object, layer: object, name: object, field: str = "") -> str:
    """Return the path of a namespace, layer and name. Raises Invalid for the one that is wrong."""
    slug(namespace, field or "namespace")
    if layer not in LAYERS:
        raise Invalid(field or "layer", layer, f"is not one of {', '.join(LAYERS)}")
    return f"{namespace}/{layer}/{slug(name, field or 'name')}"


def slug(value: object, field: str) -> str:
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        reason = "is not a slug: a lower-case letter, then up to 59 lower-case letters, digits, - and _"
        raise Invalid(field, value, reason)
    return value
