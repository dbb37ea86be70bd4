"""Parts of the OpenAPI document that many routes share: headers and refusals."""

from typing import Any

Schema = dict[str, Any]

REF = "#/components/schemas/{model}"
PROBLEMS = {
    400: "it cannot be executed now",
    401: "no key, or one that is not known", 403: "the key may not", 404: "not found", 409: "not in this state",
    412: "it changed since it was read", 413: "the body is too long", 415: "the body is not application/json",
    422: "a value is wrong", 429: "too many failed attempts or open streams", 503: "the database is out of reach",
}  # fmt: skip
HEADERS = {
    "Idempotency-Key": ("the same key with the same request gets the first answer again", "[!-~]{1,255}"),
    "If-Match": ("the ETag that was read; refused with 412 if it changed since", None),
    "traceparent": ("the trace that the run belongs to (W3C)", None),
    "Last-Event-ID": ("the id of the last event that was read", None),
}


def header(name: str, required: bool = False) -> Schema:
    text, pattern = HEADERS[name]
    schema = {"type": "string", "pattern": f"^{pattern}$"} if pattern else {"type": "string"}
    return {"name": name, "in": "header", "required": required, "description": text, "schema": schema}


def refusals(numbers: list[int]) -> Schema:
    content = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    return {str(number): {"description": PROBLEMS[number], "content": content} for number in sorted(numbers)}


def without_noise(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "title" and not (key == "default" and value is None)}
