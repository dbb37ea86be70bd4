"""Where a process can die: before each statement and each commit of any database of this process. For tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from rota.db.dialect import watchers


@contextmanager
def at_each_statement(reached: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, `reached` is called with the statement that comes next, or `COMMIT`."""

    def statement(*args: Any) -> None:
        reached(args[2])

    def commit(_: Any) -> None:
        reached("COMMIT")

    def straight(text: str, _: Any) -> None:
        reached(text)

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    watchers.append(straight)
    try:
        yield
    finally:
        watchers.remove(straight)
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)
