"""Functions and commands are called by tasks."""

from tests.kinds.tasks.harness import harness, isolated_harness, registry

__all__ = ["harness", "isolated_harness", "registry"]
