"""`manage.py rota …`: the command `rota` with the project's program and settings."""

import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand

PROGRAM = "rota.django:app"
PROGRAM_COMMANDS = ("up", "server", "worker")  # take a program


class Command(BaseCommand):
    """Passes its words on; Django's own options do not apply."""

    help = "Run Rota: `manage.py rota up`, `server`, `worker`, `migrate`, or any other command of `rota`."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        self.handle(*argv[2:])

    def handle(self, *words: str, **_: Any) -> None:
        from rota.app.cli import main

        sys.argv = ["rota", *with_program(words)]  # worker processes are started with the same words
        main()


def with_program(words: Sequence[str]) -> list[str]:
    """Return the words of a command with the project's program, if it takes one."""
    place = next((place for place, word in enumerate(words, 1) if word in PROGRAM_COMMANDS), None)
    return list(words) if place is None else [*words[:place], PROGRAM, *words[place:]]
