"""Tasks over a fresh database of either kind."""

from tests.kinds.tasks.harness import harness, isolated_harness, registry

__all__ = ["harness", "isolated_harness", "registry"]
