"""Writes `rota/client_routes.py`: the routes of the API with the types of their bodies and answers, for the client."""

import keyword
import re
from collections.abc import Iterator

from tests.clients.document import PREFIX, Schema, client_document, name_of, operations_of

HEAD = '''"""Routes of the API with the types of their bodies and answers, for `send` and `items` of `rota.client`.

Generated from the OpenAPI document by `make clients`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

Body = TypeVar("Body")
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """A call of a route: `send` sends it and returns its answer."""

    method: str
    path: str
    body: object
    query: dict[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Route(Generic[Body, Answer]):
    """A route below /api/v1. Its path may have parameters in braces."""

    method: str
    path: str

    def __call__(self, body: Body | None = None, **parameters: str | int | float | bool | None) -> Request[Answer]:
        """Return a request. Parameters of path and query are passed by name. Raises TypeError if one of the path is
        missing."""
        names = re.findall(r"\\{(\\w+)\\}", self.path)
        if missing := [name for name in names if parameters.get(name) is None]:
            raise TypeError(f"{self.method} {self.path} needs {', '.join(missing)}")
        path = self.path
        for name in names:
            path = path.replace(f"{{{name}}}", quote(str(parameters[name]), safe=""))
        return Request(self.method, path, body, {k: value for k, value in parameters.items() if k not in names})


class PageOf(TypedDict, Generic[Item]):
    items: list[Item]
    next_cursor: str | None

'''
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def source() -> str:
    """Return the source of the module."""
    api = client_document()
    schemas = api["components"]["schemas"]
    pages = {name: item for name, schema in schemas.items() if (item := item_of(schema)) is not None}
    models = "".join(model(name, schema, pages) for name, schema in schemas.items() if name not in pages)
    routes = "".join(
        f"{route_name(method, path)}: Route[{', '.join(types_of(operation, pages))}] = "
        f'Route("{method}", "{path.removeprefix(PREFIX)}")\n'
        for method, path, operation in operations_of(api)
    )
    return HEAD + models + "\n\n" + routes


def item_of(schema: Schema) -> Schema | None:
    """Return the schema of a page's items; None if it is not a page."""
    properties = schema.get("properties", {})
    if set(properties) != {"items", "next_cursor"}:
        return None
    items: Schema = properties["items"]["items"]
    return items


def route_name(method: str, path: str) -> str:
    """Return a name such as `post_schedules_by_key_run` for POST /schedules/{key}/$run."""
    words = path.removeprefix(PREFIX).replace("{", "by_")
    return method.lower() + re.sub(r"[^a-z0-9]+", "_", words).rstrip("_")


def types_of(operation: Schema, pages: dict[str, Schema]) -> tuple[str, str]:
    """Return the types of an operation's body and answer."""
    body = operation.get("requestBody")
    _, good = next(item for item in operation["responses"].items() if item[0].startswith("2"))
    content = good.get("content", {})
    answer = (
        type_of(content["application/json"]["schema"], pages)
        if "application/json" in content
        else ("bytes" if content else "None")
    )
    return type_of(body["content"]["application/json"]["schema"], pages) if body else "None", answer


def model(name: str, schema: Schema, pages: dict[str, Schema]) -> str:
    """Return a class of an object, else an alias."""
    if not schema.get("properties"):
        return f"\n{name} = {type_of(schema, pages)}\n"
    fields = dict(fields_of(schema, pages))
    if all(field.isidentifier() and not keyword.iskeyword(field) for field in fields):
        lines = "".join(f"    {field}: {kind}\n" for field, kind in fields.items())
        return f"\n\nclass {name}(TypedDict):\n{lines}\n"
    members = ", ".join(f'"{field}": {kind}' for field, kind in fields.items())  # a keyword such as `from`
    return f'\n{name} = TypedDict("{name}", {{{members}}})\n'


def fields_of(schema: Schema, pages: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    required = schema.get("required", ())
    for field, member in schema["properties"].items():
        kind = type_of(member, pages, quoted=True)
        yield field, kind if field in required else f"NotRequired[{kind}]"


def type_of(schema: Schema, pages: dict[str, Schema], quoted: bool = False) -> str:
    """Return a schema as an annotation. Models are in quotes where one may be defined later."""
    if "$ref" in schema:
        name = name_of(schema["$ref"])
        if name in pages:
            return f"PageOf[{type_of(pages[name], pages, quoted)}]"
        return f'"{name}"' if quoted else name
    for union in ("anyOf", "oneOf"):
        if union in schema:
            kinds = list(dict.fromkeys(type_of(member, pages, quoted) for member in schema[union]))
            return "Any" if "Any" in kinds else union_of(kinds)
    if len(schema.get("allOf", ())) == 1:
        return type_of(schema["allOf"][0], pages, quoted)
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(repr(value) for value in values)}]"
    match schema.get("type"):
        case "array":
            return f"list[{type_of(schema.get('items', {}), pages, quoted)}]"
        case "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {type_of(values, pages, quoted) if isinstance(values, dict) else 'Any'}]"
        case list() as kinds:
            return union_of([SCALARS.get(kind, "Any") for kind in kinds])
        case kind:
            return SCALARS.get(str(kind), "Any")


def union_of(kinds: list[str]) -> str:
    """Return a union; as one quoted text where a member is quoted, because texts have no `|`."""
    text = " | ".join(kinds)
    return f'"{text.replace(chr(34), "")}"' if '"' in text else text
