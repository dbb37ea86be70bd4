"""Attacks on the product use the same API over a fresh database as its other tests."""

from tests.app.harness import api, cheap_password_hashes

__all__ = ["api", "cheap_password_hashes"]
