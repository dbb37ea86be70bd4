"""Reference pages that are made from the code: fields of schedules, routes, commands, errors, reasons, Python names."""

import inspect
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer

import rota
from docs_site.permissions import permissions
from rota.app.assembly import BUILT_IN_RUNNERS
from rota.app.cli import app
from rota.core import errors
from rota.core.explain import REASON_TEXTS
from rota.core.schedule_form import ScheduleBody
from rota.core.timing_form import TYPES_OF_FIELD
from rota.core.wire import Retry
from tests.clients.document import client_document, name_of, operations_of

Schema = Mapping[str, Any]
SCHEDULED = ("task", "graph", "pipeline", "host_job")
NOTE = "\n\n*This page is generated from the code.*\n"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its place in the site."""
    document = client_document()
    return {
        "reference/schedule-fields.md": schedule_fields(document),
        "reference/rest.md": rest(document),
        "reference/commands.md": commands(),
        "reference/errors.md": error_codes(),
        "reference/python.md": python_names(),
        "reference/permissions.md": permissions(),
    }


def schedule_fields(document: Schema) -> str:
    schemas = document["components"]["schemas"]
    defaults = {runner.kind: runner.defaults for runner in BUILT_IN_RUNNERS}
    rows = [
        (f"`{name}`", type_text(field, schemas), ", ".join(TYPES_OF_FIELD.get(name, ("all",))), field["description"])
        for name, field in schemas[ScheduleBody.__name__]["properties"].items()
    ]
    policies = [
        (f"`{kind}`", f"`{rules.misfire}`", f"`{rules.overlap}`")
        for kind in SCHEDULED
        if (rules := defaults[kind]) is not None
    ]
    retry = [
        (f"`{name}`", type_text(field, schemas), f"`{field['default']}`", field["description"])
        for name, field in schemas[Retry.__name__]["properties"].items()
    ]
    return (
        "# Fields of a schedule\n\nThe body of `POST /schedules`, keyword arguments of `app.schedule` (with `cron`, "
        "`every` and `at` for `cron_expression`, `interval` and `run_at`, and `params` for `input`) and options of "
        "`rota schedule add`.\n\n"
        + table(("field", "type", "schedule types", "meaning"), rows)
        + "\n\n## Default policies by kind\n\n"
        + table(("kind", "misfire", "overlap"), policies)
        + "\n\n## Retry policy\n\n"
        + table(("field", "type", "default", "meaning"), retry)
        + NOTE
    )


def rest(document: Schema) -> str:
    schemas = document["components"]["schemas"]
    groups: dict[str, list[str]] = defaultdict(list)
    for method, path, operation in operations_of(dict(document)):
        groups[operation["tags"][0]].append(operation_text(method, path, operation, schemas))
    parts = [f"## {tag}\n\n" + "\n\n".join(texts) for tag, texts in sorted(groups.items())]
    head = "# All routes\n\nConventions of bodies, lists, errors and keys are described in [REST API](../api.md)."
    return "\n\n".join([head, *parts]) + NOTE


def operation_text(method: str, path: str, operation: Schema, schemas: Schema) -> str:
    lines = [f"### `{method} {path}`", operation.get("description", operation["summary"])]
    parameters = [
        (f"`{item['name']}`", item["in"], type_text(item["schema"], schemas), item.get("description", ""))
        for item in operation.get("parameters", ())
        if item["in"] != "header"
    ]
    if parameters:
        lines.append(table(("parameter", "in", "type", "meaning"), parameters))
    content: Schema = operation.get("requestBody", {}).get("content", {})
    body: Schema = next((media.get("schema", {}) for media in content.values()), {})
    fields = schemas.get(name_of(body.get("$ref", "")), {})
    if properties := fields.get("properties"):
        required = fields.get("required", ())
        rows = [
            (f"`{name}`" + (" (required)" if name in required else ""), type_text(field, schemas), described(field))
            for name, field in properties.items()
        ]
        lines.append(table(("field of the body", "type", "meaning"), rows))
    return "\n\n".join(lines)


def described(field: Schema) -> str:
    texts = [part["description"] for part in (field, *field.get("anyOf", ())) if "description" in part]
    return texts[0] if texts else ""


def type_text(schema: Schema, schemas: Schema) -> str:
    """Return type and limits of a value in a few words."""
    if options := schema.get("anyOf") or schema.get("allOf"):
        return " or ".join(type_text(option, schemas) for option in options if option != {"type": "null"})
    if reference := schema.get("$ref"):
        target = schemas[name_of(reference)]
        return type_text(target, schemas) if "enum" in target else name_of(reference)
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {type_text(schema['items'], schemas)}"
    text = str(schema.get("format") or schema.get("type") or "any JSON")
    low, high = schema.get("minimum", schema.get("minLength")), schema.get("maximum", schema.get("maxLength"))
    unit = " characters" if "maxLength" in schema else ""
    if low is not None and high is not None:
        text += f", {low:,.10g} to {high:,.10g}{unit}"
    elif high is not None:
        text += f", at most {high:,.10g}{unit}"
    examples = schema.get("examples", ())
    return f"{text}, such as `{json.dumps(examples[0])}`" if examples else text


def commands() -> str:
    root = typer.main.get_command(app)
    head = (
        "# Commands and options\n\nHow formats, profiles and completion work is described in [command line](../cli.md)."
    )
    return "\n\n".join([head, *command_texts("rota", root)]) + NOTE


def command_texts(name: str, command: Any) -> Iterator[str]:
    """Yield the text of a command, or of those in a group. Its class is one of Typer's own copy of Click."""
    if hasattr(command, "commands"):
        for word, below in sorted(command.commands.items()):
            if not below.hidden:
                yield from command_texts(f"{name} {word}", below)
        return
    arguments = [
        (param.metavar or param.name).upper() for param in command.params if param.param_type_name == "argument"
    ]
    rows = [
        (f"`{', '.join([*option.opts, *option.secondary_opts])}`", option.help or "")
        for option in command.params
        if option.param_type_name == "option" and not option.hidden
    ]
    text = f"## `{' '.join([name, *arguments])}`\n\n{inspect.cleandoc(command.help or '')}"
    yield f"{text}\n\n{table(('option', 'meaning'), rows)}" if rows else text


def error_codes() -> str:
    known = sorted({error.code: error for error in all_errors(errors.RotaError)}.items())
    codes = [(f"`{code}`", (error.__doc__ or "").split("\n\n")[0]) for code, error in known]
    reasons = [(f"`{reason}`", text) for reason, text in sorted(REASON_TEXTS.items())]
    return (
        "# Errors and reasons\n\n## Error codes\n\nThe `code` of a problem document (RFC 9457) and of failed runs.\n\n"
        + table(("code", "meaning"), codes)
        + "\n\n## Reasons\n\nThe `reason` of a run or of a slot's verdict; `rota why` prints it in a sentence.\n\n"
        + table(("reason", "because"), reasons)
        + NOTE
    )


def all_errors(error: type[errors.RotaError]) -> Iterator[type[errors.RotaError]]:
    yield error
    for below in error.__subclasses__():
        yield from all_errors(below)


def python_names() -> str:
    names = [name for name in rota.__all__ if not name.startswith("_")]
    parts = [f"## {name}\n\n{python_name(name)}" for name in sorted(names, key=str.lower)]
    return "\n\n".join(["# Python names\n\nAll are imported from `rota`.", *parts]) + NOTE


def python_name(name: str) -> str:
    """Return the directive of mkdocstrings that documents a name; for a name of a library where it comes from."""
    value = getattr(rota, name)
    module = getattr(value, "__module__", rota.HOMES[name])
    return f"::: {rota.HOMES[name]}.{name}" if module.startswith("rota.") else f"`{module}.{name}`."


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
