"""Data frames as results and parameters of tasks, with the real libraries."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from sqlalchemy import func, select

from rota.core.errors import Invalid, LogicError
from rota.db.dialect import Tx
from rota.db.tables import artifacts as artifact_rows
from rota.engine import artifact_contents
from rota.user_code.frames import PARQUET, describe, from_parquet, to_parquet
from tests.kinds.tasks.harness import TaskHarness

LIMIT = 10 << 20  # bytes of an artifact
ROWS = {"city": ["Oslo", "Bergen", "Voss"], "sales": [3, 1, 2]}
FRAMES: dict[str, Any] = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.table}


def rows_of(content: bytes) -> dict[str, list[Any]]:
    return dict(pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict())


@pytest.mark.parametrize("library", FRAMES)
async def test_a_data_frame_is_an_artifact_and_the_outcome_describes_it(harness: TaskHarness, library: str) -> None:
    @harness.program.task
    def report() -> Any:
        return FRAMES[library](ROWS)

    run = await harness.run(report)
    assert run["status"] == "success", run["error"]
    outcome = run["outcome"]
    assert (outcome["rows"], outcome["columns_total"], outcome["content_type"]) == (3, 2, PARQUET)
    assert [column["name"] for column in outcome["columns"]] == ["city", "sales"]
    assert outcome["columns"][1]["type"].lower() == "int64"
    assert outcome["preview"][:2] == [{"city": "Oslo", "sales": 3}, {"city": "Bergen", "sales": 1}]
    content_type, content = await artifact_contents.read_all(harness.engine, harness.org_id, outcome["artifact_id"])
    assert content_type == PARQUET
    assert rows_of(content) == ROWS


async def test_a_parameter_is_loaded_in_the_type_of_its_hint(harness: TaskHarness) -> None:
    """Whichever library wrote it, by id or by the outcome of the run that made it; in async and sync functions."""

    @harness.program.task
    def make() -> polars.DataFrame:
        return polars.DataFrame(ROWS)

    @harness.program.task
    async def total(orders: pandas.DataFrame, same: pyarrow.Table, third: polars.DataFrame) -> list[Any]:
        return [int(orders["sales"].sum()), same.num_rows, third.columns]

    @harness.program.task
    def in_thread(orders: pandas.DataFrame, none: pandas.DataFrame | None = None) -> list[Any]:
        return [int(orders["sales"].sum()), none is None]

    outcome = (await harness.run(make))["outcome"]
    artifact_id = outcome["artifact_id"]
    run = await harness.run(total, orders=outcome, same=artifact_id, third=artifact_id)
    assert run["outcome"] == [6, 3, ["city", "sales"]], run["error"]
    assert (await harness.run(in_thread, orders=artifact_id))["outcome"] == [6, True]


async def test_a_reference_that_cannot_be_loaded_fails_the_run_with_a_reason(harness: TaskHarness) -> None:
    @harness.program.task
    def make() -> bytes:
        return b"no table"

    @harness.program.task
    def use(orders: pandas.DataFrame) -> int:
        return len(orders)

    unknown = await harness.run(use, orders="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert unknown["error"]["message"] == "parameter 'orders': artifact '01ARZ3NDEKTSV4RRFFQ69G5FAV' not found"
    made = (await harness.run(make))["outcome"]
    wrong = await harness.run(use, orders=made)
    assert wrong["error"]["message"] == (
        f"parameter 'orders': artifact {made['artifact_id']!r} has the content type application/octet-stream, "
        "not application/vnd.apache.parquet"
    )
    with pytest.raises(Invalid, match=r"input\.orders"):
        await harness.run(use, orders=5)


async def test_another_org_cannot_be_read(harness: TaskHarness) -> None:
    @harness.program.task
    def make() -> polars.DataFrame:
        return polars.DataFrame(ROWS)

    @harness.program.task
    def use(orders: polars.DataFrame) -> int:
        return len(orders)

    artifact_id = (await harness.run(make))["outcome"]["artifact_id"]

    def give_away(tx: Tx) -> None:
        tx.execute(artifact_rows.update().values(org_id="other"))

    await harness.db.tx(give_away)
    assert "not found" in (await harness.run(use, orders=artifact_id))["error"]["message"]


async def test_a_data_frame_that_is_too_large_fails_the_run(harness: TaskHarness) -> None:
    @harness.program.task
    def make() -> polars.DataFrame:
        return polars.DataFrame({"n": polars.Series(range(4_000_000)).shuffle(seed=1)})

    run = await harness.run(make)
    assert "bytes; at most 10485760 are allowed" in run["error"]["message"]
    assert await harness.db.read(lambda tx: tx.execute(select(func.count()).select_from(artifact_rows)).scalar()) == 0


async def test_the_schema_of_a_task_shows_a_reference(harness: TaskHarness) -> None:
    @harness.program.task
    def use(orders: pandas.DataFrame) -> int:
        return len(orders)

    schema = harness.program.injector.signature(use).schema()
    assert schema["required"] == ["orders"]
    assert {"type": "string"} in schema["properties"]["orders"]["anyOf"]


def test_an_outcome_is_small_and_json_whatever_the_frame_has() -> None:
    wide = polars.DataFrame({f"c{number}": ["x" * 1000] * 50 for number in range(500)})
    described = describe(wide)
    assert (described["columns_total"], len(described["columns"])) == (500, 100)  # type: ignore[arg-type]
    assert len(str(described)) < 100_000
    odd = pandas.DataFrame(
        {
            "at": [datetime(2026, 5, 4, tzinfo=UTC)],
            "number": [Decimal("1.5")],
            "nan": [float("nan")],
            "big": [2**60],
            "bytes": [b"\xff"],
        }
    )
    assert describe(odd)["preview"] == [
        {"at": "2026-05-04 00:00:00+00:00", "number": "1.5", "nan": None, "big": str(2**60), "bytes": "b'\\xff'"}
    ]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    content = to_parquet(polars.DataFrame(ROWS))

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Missing optional dependency", name="pyarrow")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    monkeypatch.setattr(pandas.DataFrame, "to_parquet", missing)
    with pytest.raises(Exception, match=r"missing \(pyarrow\); install it: pip install 'rota-scheduler\[pandas\]'"):
        from_parquet(pandas.DataFrame, PARQUET, content, "id", LIMIT)
    with pytest.raises(Exception, match=r"rota-scheduler\[pandas\]"):
        to_parquet(pandas.DataFrame(ROWS))


def test_content_that_is_not_parquet_is_refused() -> None:
    for cls in (pandas.DataFrame, polars.DataFrame, pyarrow.Table):
        with pytest.raises(Exception, match="artifact 'id' cannot be read as Parquet"):
            from_parquet(cls, PARQUET, b"PAR1 damaged PAR1", "id", LIMIT)


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (lambda: ["x" * (4 << 20)], {"use_dictionary": False}),
        (lambda: pyarrow.repeat(7, 500_000), {}),
        (lambda: pyarrow.ListArray.from_arrays([0, 500_000], pyarrow.repeat(7, 500_000)), {}),
    ],
    ids=["a long text", "equal numbers", "a long list"],
)
def test_a_small_file_of_a_large_frame_is_refused(column: Callable[[], Any], options: dict[str, Any]) -> None:
    file, small, large = io.BytesIO(), 1 << 16, 1 << 17
    pyarrow.parquet.write_table(pyarrow.table({"column": column()}), file, compression="zstd", **options)
    content = file.getvalue()
    assert len(content) < small, "an artifact of the allowed size"
    for cls in (pandas.DataFrame, polars.DataFrame, pyarrow.Table):
        with pytest.raises(
            LogicError, match=r"artifact 'id' is too large to load: \d+ rows and 1 columns need [34] MB"
        ):
            from_parquet(cls, PARQUET, content, "id", small)
    assert len(from_parquet(pyarrow.Table, PARQUET, content, "id", large)) in (1, 500_000)
