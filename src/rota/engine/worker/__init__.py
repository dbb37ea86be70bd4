"""One process's worker. A job passes through its parts in this order:

prefetch (claim) → executor (run one attempt) → completer (store results); cancellation stops what runs.
"""

from rota.engine.worker.worker import Worker

__all__ = ["Worker"]
