"""Handlers of `logging`."""

import logging


def other_handlers(name: str, *own: type[logging.Handler]) -> bool:
    """Whether records of a logger reach a handler that is of none of these classes."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, own) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
