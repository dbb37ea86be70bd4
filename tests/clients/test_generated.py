"""The committed files of the clients are those of the API of this checkout."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import write
from tests.clients.document import ROOT, document, operations_of
from tests.clients.postman import VARIABLES
from tests.clients.python_routes import route_name

REMEDY = "run `make clients`"


@pytest.mark.parametrize("path", write.GENERATED, ids=lambda path: path.name)
def test_a_generated_file_is_that_of_the_current_api(path: Path) -> None:
    assert path.read_text() == write.GENERATED[path](), f"{path.relative_to(ROOT)} is out of date: {REMEDY}"


def test_the_types_of_the_typescript_client_are_those_of_its_document() -> None:
    assert write.TYPES.read_text().startswith(write.typescript_head()), f"schema.ts is out of date: {REMEDY}"


def test_every_operation_has_a_typed_python_route() -> None:
    from rota import client_routes

    operations = [(method, path) for method, path, _ in operations_of(document()) if path.startswith("/api/v1/")]
    names = {route_name(method, path) for method, path in operations}
    assert len(names) == len(operations) > 150
    routes = {name: getattr(client_routes, name) for name in names}
    assert {(route.method, f"/api/v1{route.path}") for route in routes.values()} == set(operations)


def test_every_operation_is_in_the_postman_collection() -> None:
    collection = json.loads((write.CLIENTS / "rota.postman_collection.json").read_text())
    requests = [item for folder in collection["item"] for item in folder["item"]]
    assert {item["name"] for item in requests} == {f"{method} {path}" for method, path, _ in operations_of(document())}
    assert [variable["key"] for variable in collection["variable"]] == list(VARIABLES)
    assert collection["auth"]["bearer"][0]["value"] == "{{key}}"
    for item in requests:
        check_request(item["request"])


def check_request(request: dict[str, Any]) -> None:
    """The rules of the collection format 2.1 that a wrong generator would break."""
    url = request["url"]
    assert url["raw"] == "{{base_url}}/" + "/".join(url["path"])
    named = {segment[1:].partition(":")[0] for segment in url["path"] if segment.startswith(":")}
    assert named == {variable["key"] for variable in url.get("variable", [])}
    assert all(set(header) <= {"key", "value", "description", "disabled"} for header in request["header"])
    if "body" in request:
        json.loads(request["body"]["raw"])
