"""Attacks on the product use the same API over a fresh database as its other tests."""

from tests.app.conftest import api
from tests.databases import clean_url, migrated_url, postgres_template, shared_postgres, sqlite_template

__all__ = ["api", "clean_url", "migrated_url", "postgres_template", "shared_postgres", "sqlite_template"]
