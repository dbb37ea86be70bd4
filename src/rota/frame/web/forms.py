"""From a form to the body that the API takes: the same names, with the types that the API wants.

What cannot be made sense of stays text, and the API refuses it in its own words. Nothing typed is nothing said.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from rota.core.errors import Invalid
from rota.core.timing.dst import zone_of

OURS = (
    "csrf_token",
    "then",
    "said",
    "form_method",
    "if_match",
    "audit_reason",
    "preview",
    "use",
)  # what is no field of a body
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
MOMENTS = frozenset({"until", "run_at", "starts_at", "ends_at", "from", "to", "expires_at", "anchor"})
WALL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?")  # as a browser gives it


def body_of(form: Mapping[str, str], zone: str) -> dict[str, Any]:
    """The body behind a form; `retry.max_retries` is a field inside `retry`. Moments without offset are in `zone`."""
    body: dict[str, Any] = {}
    for name in sorted(form, key=lambda one: one.count(".")):  # `filter` before `filter.tag`
        if name in OURS or not form[name].strip():
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
        return [one.strip() for one in re.split(r"[,\n]", text) if one.strip()]
    if name in PAIRS:
        return pairs(text)
    if name in JSON:
        return read_json(name, text)
    return moment(text, zone) if name in MOMENTS else text


def pairs(text: str) -> dict[str, str] | str:
    """`env=prod, role=web`, as labels are written."""
    found = [one.partition("=") for one in re.split(r"[,\n]", text) if one.strip()]
    return {name.strip(): value.strip() for name, _, value in found} if all(eq for _, eq, _ in found) else text


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


def moment(text: str, zone: str) -> str:
    """A wall time as the moment it means in a zone; what has an offset, or is no moment, stays as it is."""
    if not WALL.fullmatch(text):
        return text
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone_of(zone)).isoformat()
    except ValueError:
        return text


def by_schema(form: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in the fields `input.<name>`, typed as their JSON Schema says."""
    found: dict[str, Any] = {}
    for name, one in schema.get("properties", {}).items():
        text = form.get(f"input.{name}", "")
        if not text.strip():
            continue
        kind = kind_of(one)
        if kind in ("integer", "number"):
            found[name] = number(text)
        elif kind == "boolean":
            found[name] = text == "true"
        elif kind == "any":
            found[name] = any_value(text)
        else:
            found[name] = text if kind == "string" else read_json(f"input.{name}", text)
    return found


def any_value(text: str) -> Any:
    """Where anything will do: JSON if it is, else the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a parameter, beside null: `json` for what a plain field cannot hold, `any` where nothing is said."""
    if not schema.keys() & {"type", "anyOf", "allOf", "oneOf", "$ref", "enum", "const"}:
        return "any"
    kinds = {str(one.get("type", "json")) for one in schema.get("anyOf", [schema])} - {"null"}
    kind = kinds.pop() if len(kinds) == 1 else "json"
    return kind if kind in ("string", "integer", "number", "boolean") else "json"
