"""`--watch [SECONDS]`: repeat a command that reads until Ctrl-C."""

import contextlib
import io
import sys
from collections.abc import Callable
from itertools import pairwise

import typer

from rota.frame.cli.connection import Exit

WATCH_INTERVAL_SECONDS = 2.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Screen(io.StringIO):
    """Output of one repetition, formatted as for stdout."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def repeat(command: Callable[[], None], seconds: float) -> None:
    """Repeat a command until Ctrl-C: on a terminal its output replaces the last one, in a pipe it is appended. Exit
    code 1 does not end it: the server may come back."""
    from rota.core.clock import blocking_sleep

    with contextlib.suppress(KeyboardInterrupt):
        while True:
            screen = Screen()
            try:
                with contextlib.redirect_stdout(screen):
                    command()
            except typer.Exit as end:
                if end.exit_code not in (0, Exit.FAILED):
                    raise
            print((CLEAR_SCREEN if sys.stdout.isatty() else "") + screen.getvalue(), end="", flush=True)
            blocking_sleep(seconds)


def with_seconds(args: list[str]) -> list[str]:
    """Return the arguments with the default interval after each `--watch` that has no number."""
    completed = []
    for arg, following in pairwise([*args, ""]):
        completed.append(arg)
        if arg == "--watch" and not is_number(following):
            completed.append(str(WATCH_INTERVAL_SECONDS))
    return completed


def is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
