"""Options that commands share, and checks of their values.

Every command of a `CommandGroup` has --output and --query, and --watch if it only reads. A command that sends a body
takes its fields from options and --file, see `with_fields`.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.models import CommandFunctionType

from rota.frame.cli.connection import Answer, Connection, Exit, Output, fail
from rota.frame.cli.output import check_query
from rota.frame.cli.watch import repeat, with_seconds

Command = Callable[..., None]

Limit = Annotated[int | None, typer.Option(help="maximum number of items, up to 200")]
Cursor = Annotated[str | None, typer.Option(help="`next_cursor` of the previous page")]
FieldsFile = Annotated[
    str | None,
    typer.Option("--file", "-f", help="fields as the API takes them, in JSON or YAML; - reads stdin; options override"),
]


class CommandGroup(typer.Typer):
    """A group of commands that print data."""

    def command(
        self, name: str | None = None, *, reads: bool = False, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Register a command. `reads` says that it changes nothing: it gets --watch."""
        register = super().command(name, cls=DataCommand, **settings)

        def add(command: CommandFunctionType) -> CommandFunctionType:
            register(with_output_options(command, reads))
            return command

        return add


class DataCommand(TyperCommand):
    """A command whose --watch may have a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_seconds(args))


def command_group(help: str) -> CommandGroup:
    """Return a group of sub-commands that prints its help if none is given."""
    return CommandGroup(no_args_is_help=True, rich_markup_mode=None, help=help)


def output_options(
    output: Annotated[Output | None, typer.Option("--output", "-o", help="output format; default: table")] = None,
    query: Annotated[
        str | None, typer.Option(metavar="JMESPATH", help="print what this expression selects from the answer")
    ] = None,
    watch: Annotated[
        float | None, typer.Option(metavar="[SECONDS]", min=0.1, help="repeat until Ctrl-C, by default every 2 seconds")
    ] = None,
) -> dict[str, Any]:
    """Return the options that are set. Exits with USAGE if the query is invalid."""
    if query is not None:
        check_query(query)  # before the command changes anything
    return set_fields(output=output, query=query, watch=watch)


OUTPUT_OPTIONS = inspect.signature(output_options).parameters


def with_output_options(command: Command, reads: bool) -> Command:
    """Return the command with --output and --query, and --watch if it only reads."""

    def call(values: dict[str, Any], options: dict[str, Any]) -> None:
        context: typer.Context = values["ctx"]
        connection: Connection = replace(context.obj, **options)
        context.obj = connection
        if connection.watch is None:
            command(**values)
        elif reads:
            repeat(functools.partial(command, **values), connection.watch)
        else:
            fail("--watch repeats only commands that read, such as `rota schedule list`", Exit.USAGE)

    added = [parameter for name, parameter in OUTPUT_OPTIONS.items() if reads or name != "watch"]
    return extended(command, output_options, call, added)


def with_fields(*options: Callable[..., Answer], file: bool = True) -> Callable[[Command], Command]:
    """Add the options of functions and --file to a command. It receives as `fields` what the functions return for the
    options that are set, on top of the fields of the file."""
    parameters = [parameter for function in options for parameter in inspect.signature(function).parameters.values()]
    if file:
        parameters.append(
            inspect.Parameter("file", inspect.Parameter.KEYWORD_ONLY, annotation=FieldsFile, default=None)
        )

    def read(**values: Any) -> Answer:
        fields = read_fields(values.get("file"))
        for function in options:
            fields |= function(**{name: values[name] for name in inspect.signature(function).parameters})
        return fields

    def add(command: Command) -> Command:
        def call(values: dict[str, Any], fields: Answer) -> None:
            command(**values, fields=fields)

        return extended(command, read, call, parameters, left_out=("fields",))

    return add


def set_fields(**fields: Any) -> Answer:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def some_changes(fields: Answer) -> Answer:
    """Return the fields. Exits with USAGE if there are none."""
    return fields or fail("nothing to change: give an option, or --file", Exit.USAGE)


def extended(
    command: Command,
    options: Callable[..., Answer],
    call: Callable[[dict[str, Any], Answer], None],
    added: Sequence[inspect.Parameter],
    left_out: Sequence[str] = (),
) -> Command:
    """Return a command with further parameters. It calls `call` with the values of the command's own parameters and
    with what `options` returns for the others."""
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name not in left_out]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        call(values, options(**{parameter.name: values.pop(parameter.name) for parameter in added}))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *added)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def read_fields(file: str | None) -> Answer:
    """Return the fields in a file; none without a file. Exits with USAGE unless it has an object."""
    fields = {} if file is None else read_document(file)
    return fields if isinstance(fields, dict) else fail(f"--file {file} has no object of fields", Exit.USAGE)


def read_document(file: str) -> object:
    """Parse a JSON or YAML file, or stdin for `-`. Exits with USAGE if it cannot be read."""
    from rota.frame.cli.yaml_files import parse_yaml

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--file {file}: {error.strerror if isinstance(error, OSError) else error}", Exit.USAGE)
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return parse_yaml(text)
    except ValueError as error:
        fail(f"--file {file} is neither JSON nor YAML: {error}", Exit.USAGE)


def read_pairs(pairs: list[str] | None, option: str) -> dict[str, str] | None:
    """Return the values of a repeatable option NAME=VALUE by name; None without any. Exits with USAGE."""
    parts = [text.partition("=") for text in pairs or ()]
    if not all(name and equals for name, equals, _ in parts):
        fail(f"{option} needs NAME=VALUE", Exit.USAGE)
    return {name: value for name, _, value in parts} or None


def exactly_one(**values: str | None) -> None:
    """Exit with USAGE unless exactly one of these arguments (upper case) and options is set."""
    names = " | ".join(name if name.isupper() else f"--{name}" for name in values)
    if sum(value is not None for value in values.values()) != 1:
        fail(f"give exactly one of {names}", Exit.USAGE)


def read_input(text: str | None, option: str = "--input") -> object:
    """Parse an option that has JSON, or @file. Exits with USAGE if it is not JSON."""
    if text is None:
        return None
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        fail(f"{option} {text}: {error.strerror}", Exit.USAGE)
    except ValueError as error:
        fail(f"{option} is not JSON: {error}", Exit.USAGE)
