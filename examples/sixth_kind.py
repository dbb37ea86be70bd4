"""A kind of work that a program adds: `sql_report` runs a query and records its rows.

Run it with: rota up examples/sixth_kind.py

    rota schedule list --kind sql_report
    rota schedule run totals --wait
    rota schedule run totals --wait --input '{"minimum": 50}'

All organisations may schedule these reports: their routes do not name an organisation.
"""

import asyncio
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial

from rota import Rota, RunContext
from rota.core.errors import Invalid
from rota.core.kinds import KindTraits, register
from rota.core.schedule_form import Defaults
from rota.db.dialect import Tx
from rota.engine.runner import Work


class SqlReportRunner:
    """The Runner of kind `sql_report`. A target is the name of a query; the input has its named parameters."""

    kind = "sql_report"
    defaults = Defaults()
    under_grant = False
    traits = register(kind, KindTraits(serial=True))  # a report does not run twice at the same time

    def __init__(self, database: str, reports: Mapping[str, str]) -> None:
        self.database, self.reports = database, reports

    def routes(self) -> Collection[str]:
        return {route_of(name) for name in self.reports}

    async def resolve(self, org_id: str, target: str, payload: object) -> str:
        if target not in self.reports:
            raise Invalid("target", target, f"is not one of {', '.join(sorted(self.reports))}")
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid("input", payload, "is not an object")
        return route_of(target)

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        ctx.info.name = ctx.job.target
        return partial(self.execute, ctx)

    async def execute(self, ctx: RunContext) -> object:
        """Run the query in a thread. If the run is canceled, stop the query before the cancellation goes on."""
        parameters = ctx.job.payload if isinstance(ctx.job.payload, Mapping) else {}
        connection = sqlite3.connect(self.database, check_same_thread=False)
        query = asyncio.create_task(asyncio.to_thread(rows_of, connection, self.reports[ctx.job.target], parameters))
        try:
            rows = await asyncio.shield(query)
        except asyncio.CancelledError:
            connection.interrupt()
            await asyncio.wait([query])
            raise
        finally:
            connection.close()
        ctx.log.line("log", f"{len(rows)} rows")
        return {"rows": rows}


def rows_of(connection: sqlite3.Connection, query: str, parameters: Mapping[str, object]) -> list[dict[str, object]]:
    cursor = connection.execute(query, {"minimum": 0, **parameters})
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def route_of(report: str) -> str:
    return f"sql_report:{report}"


TOTALS = """
WITH orders (shop, price) AS (VALUES ('Oslo', 30), ('Bergen', 45), ('Oslo', 40))
SELECT shop, sum(price) AS total FROM orders GROUP BY shop HAVING total > :minimum ORDER BY shop
"""

app = Rota()
app.kind(SqlReportRunner(":memory:", {"totals": TOTALS}))
app.schedule("totals", "totals", kind="sql_report", every="1h")
