"""Where a process can die: before each statement and each commit of any database of this process. For tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.engine import Engine

from rota.db.statement import statement_listeners


@contextmanager
def at_each_statement(reached: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, `reached` is called with the statement that comes next, or `COMMIT`."""

    def statement(*args: object) -> None:
        reached(str(args[2]))

    def commit(_: object) -> None:
        reached("COMMIT")

    def driver_statement(text: str, _: object) -> None:
        reached(text)

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    statement_listeners.append(driver_statement)
    try:
        yield
    finally:
        statement_listeners.remove(driver_statement)
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)
