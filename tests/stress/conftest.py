"""Fresh databases for races; each has its own, because a race leaves nothing tidy behind."""

from tests.databases import migrated_url, postgres_template, sqlite_template

__all__ = ["migrated_url", "postgres_template", "sqlite_template"]
