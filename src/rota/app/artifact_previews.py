"""Previews of artifacts: the first rows of tables, the beginning of texts. Contents are hostile: sizes are bounded."""

import csv
import io
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rota.core.errors import LogicError
from rota.user_code import frames

TEXT_BYTES = 64 * 1024  # of a text or CSV file that are read
ROWS, COLUMNS, CELL_CHARACTERS = 50, 50, 200  # of a table
PARQUET_BYTES = 20 << 20  # a larger file is only downloaded
LOADED_BYTES = 4 << 20  # of which what a Parquet file decompresses to may be `frames.MEMORY_FACTOR` times as much
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp", "image/svg+xml")
DELIMITED = {"text/csv": "", "application/csv": "", "text/tab-separated-values": "\t"}
TEXTS = ("application/json", "application/x-ndjson", "application/xml", "application/yaml", "application/toml")


class PreviewKind(StrEnum):
    IMAGE = "image"
    HTML = "html"  # only in a frame without rights
    TABLE = "table"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """The first rows of a table."""

    columns: list[str]
    rows: list[list[str]]
    row_count: int | None  # None if the file does not tell
    column_count: int


def kind_of(content_type: str, size: int) -> PreviewKind | None:
    """Return how an artifact is previewed, None if it is only downloaded."""
    media = content_type.partition(";")[0].strip().lower()
    if media in IMAGES:
        return PreviewKind.IMAGE
    if media in ("text/html", "application/xhtml+xml"):
        return PreviewKind.HTML
    if media in DELIMITED or (media == frames.PARQUET and size <= PARQUET_BYTES):
        return PreviewKind.TABLE
    return PreviewKind.TEXT if media.startswith("text/") or media in TEXTS or media.endswith("+json") else None


def table_of(content_type: str, content: bytes, artifact_id: str) -> Table:
    """Return the first rows of a table. Raises LogicError if the content is none, or needs too much memory."""
    media = content_type.partition(";")[0].strip().lower()
    if media == frames.PARQUET:
        return parquet_table(content, artifact_id)
    text = content.decode("utf-8-sig", "replace")
    if len(content) >= TEXT_BYTES:  # without the last line, which is cut
        text = text.rpartition("\n")[0] or text
    first_line = text.partition("\n")[0]
    delimiter = DELIMITED[media] or max(",;\t|", key=first_line.count)
    try:
        lines = csv.reader(io.StringIO(text), delimiter=delimiter)
        rows = [[shortened(cell) for cell in row[:COLUMNS]] for row, _ in zip(lines, range(ROWS + 1), strict=False)]
    except csv.Error as error:
        raise LogicError(f"artifact {artifact_id!r} is not CSV: {error}") from error
    complete = len(content) < TEXT_BYTES
    count = max(0, sum(1 for _ in csv.reader(io.StringIO(text), delimiter=delimiter)) - 1) if complete else None
    header = rows[0] if rows else []
    return Table(header, rows[1:], count, len(header))


def parquet_table(content: bytes, artifact_id: str) -> Table:
    try:
        frames.check_size(content, artifact_id, frames.MEMORY_FACTOR * LOADED_BYTES)
        file = frames.library("pyarrow.parquet").ParquetFile(io.BytesIO(content))
        names = [str(name) for name in file.schema_arrow.names]
        batch = next(file.iter_batches(batch_size=ROWS, columns=file.schema_arrow.names[:COLUMNS]), None)
        columns = [] if batch is None else [column.to_pylist() for column in batch.columns]
        rows = [[cell_of(value) for value in row] for row in zip(*columns, strict=True)]
        return Table([shortened(name) for name in names[:COLUMNS]], rows, file.metadata.num_rows, len(names))
    except LogicError:
        raise
    except ImportError as error:
        raise LogicError(
            "the server needs pyarrow to show Parquet files: pip install 'rota-scheduler[arrow]'"
        ) from error
    except Exception as error:  # of the library, about a file that is not what its content type says
        raise LogicError(f"artifact {artifact_id!r} cannot be read as Parquet: {error}") from error


def cell_of(value: Any) -> str:
    return "" if value is None else shortened(str(value))


def shortened(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + "…"


def text_of(content_type: str, content: bytes) -> str:
    """Return the beginning of a text."""
    charset = content_type.lower().partition("charset=")[2].strip(" \"';") or "utf-8"
    try:
        return content[:TEXT_BYTES].decode(charset, "replace")
    except LookupError:
        return content[:TEXT_BYTES].decode("utf-8", "replace")
