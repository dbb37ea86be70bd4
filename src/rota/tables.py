"""Rota's tables, for users' own queries: `select(tables.runs).where(…)`. Read-only: only Rota writes to them."""

from rota.db.tables import artifacts, jobs, runs, schedules, slots, tasks

__all__ = ["artifacts", "jobs", "runs", "schedules", "slots", "tasks"]
