"""The job types of a host, with their schemas, as its agent registered them."""

from collections.abc import Mapping

import orjson

from rota.core import parse
from rota.core.errors import Invalid, together
from rota.db.paging import Record
from rota.kinds.hosts.store.records import HostRow

MAX_JOB_TYPES = 200  # of a host
SCHEMA_BYTES = 16 * 1024  # JSON of one schema
JOB_TYPES_BYTES = 256 * 1024  # JSON of all job types of a host
TEXT = {"type": "string"}
BUILT_IN: dict[str, Record] = {  # for hosts whose agent has not registered yet
    name: {"read_only": name == "http_check", "schema": {"properties": fields, "required": [next(iter(fields))]}}
    for name, fields in {
        "shell": {"command": TEXT},
        "http_check": {"url": TEXT, "expect_status": {}},
        "python": {"entry_point": TEXT, "args": {}},
    }.items()
}


def read_types(value: object, field: str) -> dict[str, Record]:
    """Return `{name: {read_only, schema}}` as an agent registers it. Raises Invalid if it cannot be used."""
    if not isinstance(value, dict) or len(value) > MAX_JOB_TYPES:
        raise Invalid(field, type(value).__name__, f"is not an object of at most {MAX_JOB_TYPES} job types")
    for name, job_type in value.items():
        parse.label(name, field)
        if not isinstance(job_type, dict) or set(job_type) != {"read_only", "schema"}:
            raise Invalid(f"{field}.{name}", job_type, "is not an object of read_only and schema")
        parse.flag(job_type["read_only"], f"{field}.{name}.read_only")
        check_schema(job_type["schema"], f"{field}.{name}.schema")
    if len(orjson.dumps(value)) > JOB_TYPES_BYTES:
        raise Invalid(field, f"{len(value)} job types", f"have more than {JOB_TYPES_BYTES} bytes of JSON")
    return value


def check_schema(schema: object, field: str) -> None:
    """Raises Invalid unless `schema` is a JSON Schema of an object, as far as payloads are compared with it."""
    if not isinstance(schema, dict) or len(orjson.dumps(schema)) > SCHEMA_BYTES:
        raise Invalid(field, type(schema).__name__, f"is not an object of at most {SCHEMA_BYTES} bytes of JSON")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(rules, dict) for rules in properties.values()):
        raise Invalid(f"{field}.properties", properties, "is not an object of objects, one for each field")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Invalid(f"{field}.required", required, "is not a list of field names")


def types_of(host: HostRow) -> Mapping[str, Record]:
    """Return the job types that a host's agent registered; before that, the built-in ones."""
    return host.job_types if host.job_types is not None else BUILT_IN


def known_type(host: HostRow, name: str) -> Record:
    """Return a job type of a host. Raises Invalid if the host does not have it, or its schema is invalid."""
    types = types_of(host)
    if name not in types:
        raise Invalid(
            "job_type", name, f"is not a job type of host {host.name}; it has {', '.join(sorted(types)) or 'none'}"
        )
    try:
        check_schema(types[name]["schema"], "schema")  # it may have been registered before schemas were checked
    except Invalid as error:
        raise Invalid(
            "job_type", name, f"of host {host.name} has a {error.field} that {error.right}; update its agent"
        ) from error
    return types[name]


def check_payload(schema: Record, payload: Mapping[str, object]) -> None:
    """Raises Invalid for fields that are missing, unknown, or not text where the schema asks for text."""
    known = schema.get("properties", {})
    closed = {"additionalProperties": False, **schema} if known else schema
    wrong = parse.wrong_names(closed, payload, "payload", "field of this job type")
    wrong += [
        Invalid(f"payload.{name}", payload[name], "is not text")
        for name, rules in known.items()
        if rules.get("type") == "string" and name in payload and not isinstance(payload[name], str)
    ]
    if wrong:
        raise together(wrong)
