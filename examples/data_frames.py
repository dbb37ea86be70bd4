"""Data frames as results and parameters of tasks. Needs `pip install 'rota-scheduler[polars]'`.

rota up examples/data_frames.py
rota task run sales --wait              # the outcome has an artifact_id, the columns and the first rows
rota artifact get ARTIFACT_ID -O sales.parquet
rota task run largest --param sales=ARTIFACT_ID --wait
"""

import polars as pl

from rota import Rota

app = Rota()


@app.task
def sales(days: int = 7) -> pl.DataFrame:
    """A data frame is saved as Parquet in an artifact, and the outcome has its id. pandas and Arrow work alike."""
    rows = [{"day": day, "city": city, "sold": day * len(city)} for day in range(days) for city in ("Oslo", "Bergen")]
    return pl.DataFrame(rows)


@app.task
def largest(sales: pl.DataFrame) -> dict[str, int]:
    """The parameter is the id of an artifact, or the whole outcome of the run that made it."""
    totals = sales.group_by("city").agg(pl.col("sold").sum()).sort("sold", descending=True)
    city, sold = totals.row(0)
    return {city: sold}
