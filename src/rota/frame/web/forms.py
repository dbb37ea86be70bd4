"""Convert form fields to a request body of the API: same names, values typed by the schema of the body.

Text that cannot be converted is passed on, and the API refuses it. Empty fields are left out.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel

from rota.core.errors import Invalid
from rota.core.timing.dst import zone_of
from rota.db.paging import Record

FORM_CONTROL_FIELDS = (
    "csrf_token",
    "then",
    "said",
    "form_method",
    "if_match",
    "audit_reason",
    "preview",
    "use",
    "edited_id",
)  # not part of the body
LOCAL_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
)  # value of an <input type="datetime-local">


Schema = Mapping[str, Any]


class BodySchema:
    """JSON Schema of a request body, which types the fields of a form. Without a schema all fields are text."""

    def __init__(self, schema: Schema, definitions: Schema) -> None:
        self.schema, self.definitions = schema, definitions

    def kind(self, name: str) -> str:
        """Return the kind of a field; `retry.max_retries` is a field of `retry`."""
        schema = self.resolved(self.schema)
        for part in name.split("."):
            schema = self.resolved(schema.get("properties", {}).get(part, {"type": "string"}))
        return self.kind_of(schema)

    def kind_of(self, schema: Schema) -> str:
        kinds = schema.get("type", "json")
        kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
        if "enum" in schema or "string" in kinds:
            return "time" if schema.get("format") == "date-time" else "text"
        if kinds == ["array"]:
            return "list" if self.kind_of(self.resolved(schema.get("items", {}))) == "text" else "json"
        if kinds == ["object"]:
            values = schema.get("additionalProperties")
            return "pairs" if isinstance(values, Mapping) and self.kind_of(values) == "text" else "json"
        return {"integer": "number", "number": "number", "boolean": "flag"}.get(kinds[0], "json")

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema behind a reference or beside null."""
        choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
        if len(choices) == 1:
            return self.resolved(choices[0])
        return self.resolved(self.definitions[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema


def schema_of_route(document: Schema, method: str, path: str) -> BodySchema:
    """Return the schema of the body of a route in an OpenAPI document."""
    schema: Schema = {}
    for template, operations in document["paths"].items():
        if method.lower() in operations and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
            content = operations[method.lower()].get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            break
    return BodySchema(schema, document["components"]["schemas"])


def schema_of_model(model: type[BaseModel]) -> BodySchema:
    schema = model.model_json_schema()
    return BodySchema(schema, schema.get("$defs", {}))


def body_of(form: Mapping[str, str], zone: str, schema: BodySchema) -> dict[str, object]:
    """Return the body of a form; `retry.max_retries` is a field of `retry`. Times without offset are in `zone`."""
    body: dict[str, object] = {}
    for name in sorted(form, key=lambda field: field.count(".")):  # `filter` before `filter.tag`
        if name in FORM_CONTROL_FIELDS or not form[name].strip():
            continue
        outer, _, last = name.rpartition(".")
        place = body.setdefault(outer, {}) if outer else body
        if isinstance(place, dict):
            place[last] = value_of(last, form[name], zone, schema.kind(name))
    return body


def value_of(name: str, text: str, zone: str, kind: str) -> object:
    match kind:
        case "number":
            return number(text)
        case "flag":
            return {"true": True, "on": True, "false": False}.get(text, text)
        case "list":
            return [item.strip() for item in re.split(r"[,\n]", text) if item.strip()]
        case "pairs":
            return pairs(text)
        case "json":
            return read_json(name, text)
        case "time":
            return to_rfc3339(text, zone)
        case _:
            return text


def pairs(text: str) -> dict[str, str] | str:
    """Parse labels such as `env=prod, role=web`; other text is returned unchanged."""
    parts = [item.partition("=") for item in re.split(r"[,\n]", text) if item.strip()]
    return {name.strip(): value.strip() for name, _, value in parts} if all(eq for _, eq, _ in parts) else text


def number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def read_json(name: str, text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid(name, text, f"is not JSON: {error}") from error


def to_rfc3339(text: str, zone: str) -> str:
    """Return a local time of a zone as RFC 3339 with offset; any other text unchanged."""
    if not LOCAL_TIME.fullmatch(text):
        return text
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone_of(zone)).isoformat()
    except ValueError:
        return text


def by_schema(form: Mapping[str, str], schema: Record) -> dict[str, object]:
    """Return the parameters in the fields `input.<name>`, typed by their JSON Schema."""
    values: dict[str, object] = {}
    for name, property_schema in schema.get("properties", {}).items():
        text = form.get(f"input.{name}", "")
        if not text.strip():
            continue
        kind = kind_of(property_schema)
        if kind in ("integer", "number"):
            values[name] = number(text)
        elif kind == "boolean":
            values[name] = text == "true"
        elif kind == "any":
            values[name] = any_value(text)
        else:
            values[name] = text if kind == "string" else read_json(f"input.{name}", text)
    return values


def any_value(text: str) -> object:
    """Return a value of a parameter without type: parsed JSON, else the text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def kind_of(schema: Record) -> str:
    """Return the type of a parameter, ignoring null: `json` for objects and lists, `any` without a declared type."""
    if not schema.keys() & {"type", "anyOf", "allOf", "oneOf", "$ref", "enum", "const"}:
        return "any"
    kinds = {str(alternative.get("type", "json")) for alternative in schema.get("anyOf", [schema])} - {"null"}
    kind = kinds.pop() if len(kinds) == 1 else "json"
    return kind if kind in ("string", "integer", "number", "boolean") else "json"
