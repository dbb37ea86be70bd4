"""The OpenAPI document of this checkout, and the parts of it that clients are generated from."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rota.app.api import create_api
from rota.core.clock import SystemClock
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings

Schema = dict[str, Any]
ROOT = Path(__file__).parents[2]
PREFIX = "/api/v1"
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def document() -> Schema:
    """Return the OpenAPI document, as `/openapi.json` does."""
    with TemporaryDirectory() as directory:
        db = open_database(f"sqlite:///{directory}/rota.db")  # is not used
        return create_api(Engine(db, SystemClock(), Wake(), {}, EngineSettings()), db).openapi()


def client_document() -> Schema:
    """Return the document of the routes for users, below /api/v1, with one answer for all refusals of a route: each of
    them is a problem document."""
    whole = document()
    paths = {
        path: {method: without_refusals(operation) for method, operation in operations.items()}
        for path, operations in whole["paths"].items()
        if path.startswith(f"{PREFIX}/")
    }
    used: set[str] = set()
    follow(paths, whole["components"]["schemas"], used)
    schemas = {name: schema for name, schema in whole["components"]["schemas"].items() if name in used}
    return {**whole, "paths": paths, "components": {**whole["components"], "schemas": schemas}}


def operations_of(api: Schema) -> list[tuple[str, str, Schema]]:
    """Return method, path and description of each operation."""
    return [
        (method.upper(), path, operation)
        for path, operations in api["paths"].items()
        for method, operation in operations.items()
    ]


def name_of(reference: str) -> str:
    return reference.rpartition("/")[2]


def without_refusals(operation: Schema) -> Schema:
    good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
    refused = {"description": "the request was refused", "content": PROBLEM}
    return {**operation, "responses": {**good, "default": refused}}


def follow(part: object, schemas: Schema, used: set[str]) -> None:
    """Add the names of all schemas that a part of the document refers to."""
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str) and (name := name_of(reference)) not in used:
            used.add(name)
            follow(schemas[name], schemas, used)
        part = list(part.values())
    if isinstance(part, list):
        for member in part:
            follow(member, schemas, used)
