"""Saved views: named filters of runs, of a user, shared by link or with the organisation."""

from typing import Any

import pytest

from rota.access.store import saved_views
from rota.access.store.saved_views import Visibility
from rota.core.errors import Conflict, NotFound, Refused
from rota.core.run_filter import RunFilter
from tests.app.harness import NINE, Api

FAILED = {"status": "failed", "error": "timeout", "input": ["customer=42"], "within": "24h"}


async def other_user(api: Api) -> str:
    person = {"email": "grace@example.org", "password": "correct horse", "role": "viewer"}
    return str((await api.call("POST", "/users", person)).json()["id"])


async def test_a_view_is_saved_used_overridden_edited_and_deleted(api: Api) -> None:
    await api.schedule("nightly")
    pending = await api.job("nightly")
    made = await api.call("POST", "/views", {"name": "queue", "filter": {"status": "pending", "within": "1h"}})
    assert made.status_code == 201, made.text
    view = made.json()
    assert (view["visibility"], view["link"]) == ("private", f"/runs?view={view['id']}")
    assert made.headers["location"] == f"/api/v1/views/{view['id']}"
    for key in ("queue", view["id"]):
        assert await api.get(f"/views/{key}") == view
        (run,) = (await api.get("/runs", view=key))["items"]
        assert run["job_id"] == pending
    assert (await api.get("/runs", view="queue", status="success"))["items"] == []

    edited = await api.call("PATCH", "/views/queue", {"name": "failed", "filter": FAILED, "visibility": "org"})
    assert edited.status_code == 200, edited.text
    assert (edited.json()["filter"], edited.json()["name"]) == (FAILED, "failed")
    assert [item["name"] for item in (await api.get("/views"))["items"]] == ["failed"]
    entries = (await api.get("/audit"))["items"]
    assert [entry["action"] for entry in entries[:2]] == ["views.edit", "views.create"]

    assert (await api.call("DELETE", "/views/failed")).status_code == 204
    assert (await api.call("GET", "/runs", params={"view": "failed"})).status_code == 422


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"filter": {}}, "name is missing"),
        ({"name": "x"}, "filter is missing"),
        ({"name": "", "filter": {}}, "name"),
        ({"name": "x", "filter": {"colour": "red"}}, "unknown field"),
        ({"name": "x", "filter": {"status": "great"}}, "is not one of"),
        ({"name": "x", "filter": {"within": "soon"}}, "must be a span"),
        ({"name": "x", "filter": {"input": ["customer"]}}, "FIELD=VALUE"),
        ({"name": "x", "filter": {"longer_than": "5m", "shorter_than": "1m"}}, "longer_than"),
        ({"name": "x", "filter": {}, "visibility": "world"}, "private, link, org"),
    ],
)
async def test_a_wrong_view_is_refused_and_not_stored(api: Api, body: dict[str, Any], message: str) -> None:
    answer = await api.call("POST", "/views", body)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]
    assert await api.count("saved_views") == 0


async def test_who_may_use_a_view_depends_on_how_it_is_shared(api: Api) -> None:
    ada = (await api.call("POST", "/views", {"name": "mine", "filter": FAILED})).json()
    grace = await other_user(api)
    read = api.db.read

    async def edit(**changes: Any) -> None:
        assert (await api.call("PATCH", f"/views/{ada['id']}", changes)).status_code == 200

    async def names() -> list[str]:
        return [item["name"] for item in (await read(saved_views.list_views, api.org_id, grace))[0]]

    for key in ("mine", ada["id"]):
        with pytest.raises(NotFound):
            await read(saved_views.find, api.org_id, grace, key)
    await edit(visibility="link")
    assert (await read(saved_views.find, api.org_id, grace, ada["id"]))["filter"] == FAILED
    with pytest.raises(NotFound):  # its name is not a link
        await read(saved_views.find, api.org_id, grace, "mine")
    assert await names() == []
    await edit(visibility="org")
    assert await names() == ["mine"]
    assert (await read(saved_views.find, api.org_id, grace, "mine"))["id"] == ada["id"]
    with pytest.raises(Refused, match="save a view of your own"):
        await api.db.tx(saved_views.edit, api.org_id, grace, "mine", now=NINE)
    with pytest.raises(Refused, match="save a view of your own"):
        await api.db.tx(saved_views.remove, api.org_id, grace, "mine")
    with pytest.raises(NotFound):  # of another org
        await read(saved_views.find, "01J00000000000000000000000", ada["owner_id"], ada["id"])

    own = await api.db.tx(saved_views.add, api.org_id, grace, "mine", RunFilter(), Visibility.PRIVATE, NINE)
    assert (await read(saved_views.find, api.org_id, grace, "mine"))["id"] == own
    with pytest.raises(Conflict, match="another name"):
        await api.db.tx(saved_views.add, api.org_id, grace, "mine", RunFilter(), Visibility.PRIVATE, NINE)
    await api.db.tx(saved_views.remove, api.org_id, grace, ada["id"], any_owner=True)  # as an admin
    assert await names() == ["mine"]


async def test_the_number_of_views_is_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "VIEWS_MAX", 1)
    assert (await api.call("POST", "/views", {"name": "a", "filter": {}})).status_code == 201
    answer = await api.call("POST", "/views", {"name": "b", "filter": {}})
    assert answer.status_code == 409
    assert "1 are allowed" in answer.json()["detail"]
