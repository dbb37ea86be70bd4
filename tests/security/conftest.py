"""Attacks on the product use the same API over a fresh database as its other tests."""

from tests.app.harness import api

__all__ = ["api"]
