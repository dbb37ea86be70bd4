"""The API over a fresh database of either kind."""

from tests.app.harness import api

__all__ = ["api"]
