"""Actions for after a commit: what a transaction did is counted only if it was committed.

A step registers them on its transaction; `Database.tx` calls them after the commit with the database's `observer`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rota.db.dialect import Tx

COMMIT_ACTIONS = "commit_actions"  # key of `Tx.info`

Action = Callable[[Any], None]  # gets the observer of the database


def on_commit(tx: Tx, action: Action) -> None:
    """Call `action(observer)` when this transaction has committed; not if it is rolled back."""
    tx.info.setdefault(COMMIT_ACTIONS, []).append(action)


def begin_actions(tx: Tx) -> list[Action]:
    """Return the list that `on_commit` fills during this transaction. A connection keeps the list of a transaction that
    was rolled back, so that each one starts with a new list."""
    actions: list[Action] = []
    tx.info[COMMIT_ACTIONS] = actions
    return actions


def call_actions(actions: Sequence[Action], observer: object | None) -> None:
    """Call the actions of a committed transaction; a no-op without an observer."""
    if observer is not None:
        for action in actions:
            action(observer)
