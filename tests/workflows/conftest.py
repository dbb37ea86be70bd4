"""Workflows over a fresh database of either kind, with the clock in the test's hands."""

from tests.databases import clean_url, postgres_template, shared_postgres, sqlite_template

__all__ = ["clean_url", "postgres_template", "shared_postgres", "sqlite_template"]
