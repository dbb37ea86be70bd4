"""Data frames as results and parameters: pandas, Polars and Arrow tables, kept as Parquet in artifacts.

A result is an artifact; the run's outcome has its id, number of rows, columns and first rows. A parameter is the id of
an artifact, or an outcome, and becomes the type of the parameter's hint, whichever library wrote it. No library is
imported before a program has imported it.
"""

import importlib
import io
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from rota.core.errors import LogicError

PARQUET = "application/vnd.apache.parquet"
OUTCOME_COLUMNS = 100
PREVIEW_ROWS = 5
PREVIEW_CELL_CHARACTERS = 100
EXACT_INTEGERS = 2**53  # larger ones are text: JSON readers round them
MEMORY_FACTOR = 50  # a frame may need so many times the largest size of an artifact
CELL_BYTES = 8  # a million equal numbers are a few bytes in the file

Frame = Any  # of pandas, Polars or Arrow; they share no type


class ArtifactReference(TypedDict):
    """The outcome of a run whose result is an artifact. Its other fields are ignored."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]
    artifact_id: str


FrameReference = str | ArtifactReference  # what a payload has for a parameter that is a data frame


@dataclass(frozen=True, slots=True)
class FrameType:
    """How a library writes, reads and describes its type."""

    extra: str  # of Rota, which installs what it needs
    write: Callable[[Frame, io.BytesIO], object]
    read: Callable[[io.BytesIO], Frame]
    columns: Callable[[Frame], Mapping[str, object]]
    head: Callable[[Frame], list[dict[str, Any]]]


def library(name: str) -> Any:
    return importlib.import_module(name)


FRAME_TYPES = {
    ("pandas", "DataFrame"): FrameType(
        "pandas",
        lambda frame, file: frame.to_parquet(file),
        lambda file: library("pandas").read_parquet(file),
        lambda frame: dict(zip(map(str, frame.columns), frame.dtypes, strict=True)),
        lambda frame: frame.head(PREVIEW_ROWS).to_dict("records"),
    ),
    ("polars", "DataFrame"): FrameType(
        "polars",
        lambda frame, file: frame.write_parquet(file),
        lambda file: library("polars").read_parquet(file),
        lambda frame: frame.schema,
        lambda frame: frame.head(PREVIEW_ROWS).to_dicts(),
    ),
    ("pyarrow", "Table"): FrameType(
        "arrow",
        lambda table, file: library("pyarrow.parquet").write_table(table, file),
        lambda file: library("pyarrow.parquet").read_table(file),
        lambda table: dict(zip(table.schema.names, table.schema.types, strict=True)),
        lambda table: table.slice(0, PREVIEW_ROWS).to_pylist(),
    ),
}


def frame_type(cls: object) -> FrameType | None:
    """Return how to handle a class of data frames or a class derived from one; None for others."""
    if not isinstance(cls, type):
        return None
    for (module, name), frame in FRAME_TYPES.items():
        if module in sys.modules and issubclass(cls, getattr(sys.modules[module], name)):
            return frame
    return None


def is_frame(value: object) -> bool:
    return frame_type(type(value)) is not None


def to_parquet(value: Frame) -> bytes:
    """Return a data frame as Parquet. Raises LogicError if the library cannot write it."""
    frame, file = expect(type(value)), io.BytesIO()
    try:
        frame.write(value, file)
    except ImportError as error:
        raise missing_extra(frame, error) from error
    except Exception as error:  # of any library; the message is for the author of the task
        raise LogicError(f"a {type(value).__name__} cannot be saved as Parquet: {error}") from error
    return file.getvalue()


def from_parquet(cls: type, content_type: str, content: bytes, artifact_id: str, artifact_limit: int) -> Frame:
    """Return the content of an artifact as a data frame of this type. Raises LogicError if it is not Parquet, or needs
    more than MEMORY_FACTOR times `artifact_limit` bytes."""
    frame = expect(cls)
    if content_type != PARQUET:
        raise LogicError(f"artifact {artifact_id!r} has the content type {content_type}, not {PARQUET}")
    try:
        check_size(content, artifact_id, MEMORY_FACTOR * artifact_limit)
        return frame.read(io.BytesIO(content))
    except LogicError:
        raise
    except ImportError as error:
        raise missing_extra(frame, error) from error
    except Exception as error:
        raise LogicError(f"artifact {artifact_id!r} cannot be read as Parquet: {error}") from error


def check_size(content: bytes, artifact_id: str, limit: int) -> None:
    """Raise LogicError if a frame needs more than `limit` bytes by the metadata of its file, before a page is
    decompressed. Long texts that repeat are counted once for each row group, as in the file."""
    metadata = library("pyarrow.parquet").read_metadata(io.BytesIO(content))
    size = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            size += max(column.total_uncompressed_size, CELL_BYTES * column.num_values)
    if size > limit:
        raise LogicError(
            f"artifact {artifact_id!r} is too large to load: {metadata.num_rows} rows and {metadata.num_columns} "
            f"columns need {size >> 20} MB; at most {limit >> 20} MB ({MEMORY_FACTOR} times ROTA_MAX_ARTIFACT_MB) are "
            "allowed. Return fewer rows or columns, or raise the setting"
        )


def describe(value: Frame) -> dict[str, object]:
    """Return number of rows, columns and first rows of a data frame as JSON of limited size."""
    frame = expect(type(value))
    columns = frame.columns(value)
    shown = list(columns)[:OUTCOME_COLUMNS]
    return {
        "rows": len(value),
        "columns": [{"name": name, "type": str(columns[name])} for name in shown],
        "columns_total": len(columns),
        "preview": [{str(name): cell(row[name]) for name in list(row)[:OUTCOME_COLUMNS]} for row in frame.head(value)],
    }


def cell(value: Any) -> object:
    """Return a value of a preview as JSON; as text if JSON has no type for it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) <= EXACT_INTEGERS:
        return value
    return str(value)[:PREVIEW_CELL_CHARACTERS]


def expect(cls: type) -> FrameType:
    frame = frame_type(cls)
    assert frame is not None, cls
    return frame


def missing_extra(frame: FrameType, error: ImportError) -> LogicError:
    return LogicError(
        f"data frames are kept as Parquet, and a library for it is missing ({error.name or error}); "
        f"install it: pip install 'rota-scheduler[{frame.extra}]'"
    )
