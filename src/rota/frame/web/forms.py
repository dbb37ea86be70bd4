"""Convert form fields to a request body of the API: same names, typed values.

Text that cannot be converted is passed on, and the API refuses it. Empty fields are left out.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from rota.core.errors import Invalid
from rota.core.timing.dst import zone_of

FORM_CONTROL_FIELDS = (
    "csrf_token",
    "then",
    "said",
    "form_method",
    "if_match",
    "audit_reason",
    "preview",
    "use",
)  # not part of the body
NUMBERS = frozenset(
    {
        *("interval_seconds", "jitter_seconds", "max_runs", "catch_up_limit", "start_deadline_seconds", "priority"),
        *("timeout_seconds", "limit", "count", "max_running", "amount_credits", "max_retries", "backoff_ms", "total"),
        *("max_backoff_ms", "per_day", "memory_mb", "cooldown_seconds", "ttl_seconds", "expect_status"),
        *("max_parallel", "max_age_days"),
    }
)
FLAGS = frozenset({"enabled", "reprocess", "dry_run", "cancel_running", "consent", "paused", "stop_on_failure"})
LISTS = frozenset({"tags", "scopes", "upstreams"})
PAIRS = frozenset({"labels"})
JSON = frozenset({"input", "parameters", "payload", "config", "filter", "result", "env"})
TIMES = frozenset({"until", "run_at", "starts_at", "ends_at", "from", "to", "expires_at", "anchor"})
LOCAL_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
)  # value of an <input type="datetime-local">


def body_of(form: Mapping[str, str], zone: str) -> dict[str, Any]:
    """Return the body of a form; `retry.max_retries` is a field of `retry`. Times without offset are in `zone`."""
    body: dict[str, Any] = {}
    for name in sorted(form, key=lambda field: field.count(".")):  # `filter` before `filter.tag`
        if name in FORM_CONTROL_FIELDS or not form[name].strip():
            continue
        outer, _, last = name.rpartition(".")
        place = body.setdefault(outer, {}) if outer else body
        if isinstance(place, dict):
            place[last] = value_of(last, form[name], zone)
    return body


def value_of(name: str, text: str, zone: str) -> Any:
    if name in NUMBERS:
        return number(text)
    if name in FLAGS:
        return {"true": True, "on": True, "false": False}.get(text, text)
    if name in LISTS:
        return [item.strip() for item in re.split(r"[,\n]", text) if item.strip()]
    if name in PAIRS:
        return pairs(text)
    if name in JSON:
        return read_json(name, text)
    return to_rfc3339(text, zone) if name in TIMES else text


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


def read_json(name: str, text: str) -> Any:
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


def by_schema(form: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in the fields `input.<name>`, typed by their JSON Schema."""
    values: dict[str, Any] = {}
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


def any_value(text: str) -> Any:
    """Return a value of a parameter without type: parsed JSON, else the text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def kind_of(schema: Mapping[str, Any]) -> str:
    """Return the type of a parameter, ignoring null: `json` for objects and lists, `any` without a declared type."""
    if not schema.keys() & {"type", "anyOf", "allOf", "oneOf", "$ref", "enum", "const"}:
        return "any"
    kinds = {str(alternative.get("type", "json")) for alternative in schema.get("anyOf", [schema])} - {"null"}
    kind = kinds.pop() if len(kinds) == 1 else "json"
    return kind if kind in ("string", "integer", "number", "boolean") else "json"
