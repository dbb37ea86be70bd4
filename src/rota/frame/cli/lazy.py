"""Commands that are imported when they are used: `rota --help` lists all of them and loads none."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from rota.frame.cli.options import CommandGroup, command_group


@dataclass(frozen=True)
class LazyCommand:
    """A command or a group of commands, and where it is found. `help` is the first sentence of its own help.

    A function gets --output and --query if `prints`, and --watch too if `reads`.
    """

    name: str
    place: str  # module:attribute
    help: str
    prints: bool = True
    reads: bool = False

    def load(self) -> Any:
        """Import the command and return it as Typer calls it."""
        module, _, attribute = self.place.partition(":")
        command: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
        group = command_group("")
        group.callback()(_no_options)  # a group even with a single command
        if isinstance(command, typer.Typer):
            group.add_typer(command, name=self.name)
        elif self.prints:
            group.command(self.name, reads=self.reads)(command)
        else:
            typer.Typer.command(group, self.name)(command)
        return typer.main.get_group(group).commands[self.name]


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, in the order in which help lists them; one is loaded when its value is read."""

    def __init__(self, commands: Sequence[LazyCommand]) -> None:
        self.declared = {command.name: command for command in commands}
        self.loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.loaded:
            self.loaded[name] = self.declared[name].load()
        return self.loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self.loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self.loaded[name], self.declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)


def lazy_group(commands: Sequence[LazyCommand], **settings: Any) -> CommandGroup:
    """Return a group of lazy commands."""

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = LazyCommands(commands)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            stubs = [TyperCommand(command.name, help=command.help) for command in commands]
            TyperGroup(commands=stubs).format_commands(ctx, formatter)

    return CommandGroup(cls=LazyGroup, **settings)


def _no_options() -> None:
    """Nothing: the options are those of the command."""
