"""The API over a fresh database of either kind."""

from tests.app.harness import api, cheap_password_hashes

__all__ = ["api", "cheap_password_hashes"]
