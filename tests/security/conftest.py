"""Attacks on the product use the same API over a fresh database as its other tests."""

from tests.app.conftest import api, migrated_url, postgres_template, sqlite_template

__all__ = ["api", "migrated_url", "postgres_template", "sqlite_template"]
