"""Graphs over a fresh database of either kind."""

from tests.kinds.graphs.harness import graphs, opened

__all__ = ["graphs", "opened"]
