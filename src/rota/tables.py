"""Rota's tables, for users' own queries: `select(tables.runs).where(…)`. To be read; Rota alone writes them."""

from rota.db.tables import artifacts, jobs, runs, schedules, slots, tasks

__all__ = ["artifacts", "jobs", "runs", "schedules", "slots", "tasks"]
