"""What runs of a schedule usually take and cost, from its last runs."""

from decimal import Decimal
from math import ceil

from sqlalchemy import select

from rota.core.catch_up import UsualRun
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.tables import charge_receipts, runs

RUNS_READ = 100  # the last runs of a schedule
r, c = runs.c, charge_receipts.c


def usual_run(tx: Tx, org_id: str, schedule_id: str) -> UsualRun | None:
    """Return what the last successful runs of a schedule took; None without any."""
    ended = (r.org_id == org_id, r.schedule_id == schedule_id, r.status == Status.SUCCESS, r.started_at.is_not(None))
    newest = select(r.id, r.started_at, r.finished_at).where(*ended).order_by(r.recorded_at.desc(), r.id.desc())
    rows = tx.execute(newest.limit(RUNS_READ)).all()
    if not rows:
        return None
    seconds = sorted((row.finished_at - row.started_at).total_seconds() for row in rows)
    charges = select(c.charged_credits, c.cost_usd).where(c.org_id == org_id, c.run_id.in_([row.id for row in rows]))
    charged = tx.execute(charges).all()
    dollars = [Decimal(charge.cost_usd) for charge in charged if charge.cost_usd is not None]
    return UsualRun(
        len(rows),
        nearest_rank(seconds, 0.5),
        nearest_rank(seconds, 0.95),
        sum(charge.charged_credits for charge in charged) / len(rows) if charged else None,
        float(sum(dollars)) / len(rows) if dollars else None,
    )


def nearest_rank(ascending: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]
