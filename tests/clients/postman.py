"""Writes `clients/rota.postman_collection.json`: all operations of the API, in the format of Postman 2.1."""

import re
from typing import Any

import orjson

from tests.clients.document import Schema, document, operations_of

SCHEMA = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
OTHER = "system"  # folder of routes without a tag
VARIABLES = {
    "base_url": ("http://127.0.0.1:8420", "URL of the server"),
    "key": ("", "API key, such as the content of admin.key"),
}


def collection() -> Schema:
    """Return the collection, with a folder for each tag of the document."""
    api = document()
    folders: dict[str, list[Schema]] = {}
    for method, path, operation in operations_of(api):
        folders.setdefault((operation.get("tags") or [OTHER])[0], []).append(request_of(method, path, operation))
    return {
        "info": {
            "name": "Rota",
            "description": "All operations of the API of Rota. Set the variables `base_url` and `key`.",
            "schema": SCHEMA,
        },
        "auth": {"type": "bearer", "bearer": [{"key": "token", "value": "{{key}}", "type": "string"}]},
        "variable": [
            {"key": name, "value": value, "type": "string", "description": text}
            for name, (value, text) in VARIABLES.items()
        ],
        "item": [{"name": name, "item": requests} for name, requests in sorted(folders.items())],
    }


def request_of(method: str, path: str, operation: Schema) -> Schema:
    """Return an operation as a request. Parameters that are not required are there, but disabled."""
    parameters = operation.get("parameters", [])
    segments = [re.sub(r"^\{(\w+)\}", r":\1", segment) for segment in path.strip("/").split("/")]
    url: Schema = {"raw": "{{base_url}}/" + "/".join(segments), "host": ["{{base_url}}"], "path": segments}
    if variables := [parameter_of(part, "path") for part in parameters if part["in"] == "path"]:
        url["variable"] = variables
    if query := [parameter_of(part, "query") for part in parameters if part["in"] == "query"]:
        url["query"] = query
    request: dict[str, Any] = {
        "method": method,
        "description": operation.get("description", ""),
        "header": [parameter_of(part, "header") for part in parameters if part["in"] == "header"],
        "url": url,
    }
    if not operation.get("security", [{}]):
        request["auth"] = {"type": "noauth"}
    if body := operation.get("requestBody"):
        example = orjson.dumps(body["content"]["application/json"].get("example", {}), option=orjson.OPT_INDENT_2)
        request["header"].append({"key": "Content-Type", "value": "application/json"})
        request["body"] = {"mode": "raw", "raw": example.decode(), "options": {"raw": {"language": "json"}}}
    return {"name": f"{method} {path}", "request": request, "response": []}


def parameter_of(parameter: Schema, place: str) -> Schema:
    value = parameter.get("schema", {}).get("default", "")
    made = {"key": parameter["name"], "value": "" if value is None else str(value)}
    if text := parameter.get("description"):
        made["description"] = text
    return made if place == "path" or parameter.get("required") else {**made, "disabled": True}
