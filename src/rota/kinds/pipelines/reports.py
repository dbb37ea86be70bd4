"""The last run of each pipeline, for drawings. Reads only."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, literal_column, select

from rota.core.states import Status
from rota.db.dialect import Tx, is_listed
from rota.db.paging import Record, dict_of
from rota.db.tables import jobs, pipelines, runs
from rota.reports.runs import LIVING_RUN

p, r, j = pipelines.c, runs.c, jobs.c

PIPELINE_KIND: ColumnElement[str] = literal_column("'pipeline'")  # a literal: a partial index serves no parameter
SHOWN = (r.id, r.job_id, r.target, r.status, r.reason, r.outcome, r.queued_at, r.started_at, r.finished_at)


def last_runs(tx: Tx, org_id: str, paths: Sequence[str]) -> dict[str, Record]:
    """Return the last run of each of these pipelines: the queued or running one, else the last that ended."""
    if not paths:
        return {}
    newest = select(r.id).where(r.org_id == org_id, r.kind == PIPELINE_KIND, r.target == p.path)
    newest = newest.order_by(r.recorded_at.desc(), r.id.desc()).limit(literal_column("1"))
    ids = select(newest.scalar_subquery()).where(
        p.org_id == org_id, p.deleted_at.is_(None), is_listed(tx, p.path, paths)
    )
    ended = select(*SHOWN).where(r.id.in_([run_id for run_id in tx.execute(ids).scalars() if run_id]))
    last = {row.target: dict_of(row) for row in tx.execute(ended)}
    living = select(*LIVING_RUN).where(j.org_id == org_id, j.kind == PIPELINE_KIND, is_listed(tx, j.target, paths))
    for row in tx.execute(living.order_by(j.id)):
        record = dict_of(row)
        known = last.get(record["target"])
        if known is None or known["status"] != Status.RUNNING:
            last[record["target"]] = record
    return last
