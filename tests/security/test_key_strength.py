"""A key never creates a stronger key, and the key that creates orgs cannot be taken from the installation."""

import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.app.data_dir import write_secret
from rota.app.first_key import replace_key
from rota.app.settings import Settings
from tests.app.harness import NINE, Api

ADA = {"email": "ada@example.org", "name": "Ada", "password": "correct horse", "role": "viewer"}
SOON, LATER = ((NINE + timedelta(days=days)).isoformat() for days in (1, 2))


async def new_key(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, dict[str, str]]:
    """The status of an attempt to create an admin key, and the headers to use it."""
    answer = await api.call("POST", "/api-keys", {"name": "k", "role": "admin", **fields}, headers=headers)
    return answer.status_code, {"authorization": f"Bearer {answer.json().get('key')}"}


async def test_scopes_of_a_new_key_are_at_most_those_of_its_creator(api: Api) -> None:
    _, narrow = await new_key(api, scopes=["api-keys", "runs:read", "schedules", "shell"])
    for scopes in ([], ["shell"], ["users"], ["schedules", "tasks"], ["runs"], ["users:read"]):
        assert await new_key(api, narrow, scopes=scopes) == (403, {"authorization": "Bearer None"}), scopes
    for scopes in (["api-keys"], ["runs:read"], ["schedules:read"], ["schedules", "shell"]):
        assert (await new_key(api, narrow, scopes=scopes))[0] == 201, scopes
    refused = await api.call("POST", "/api-keys", {"name": "k", "role": "admin", "scopes": ["users"]}, headers=narrow)
    assert "remove users" in refused.json()["detail"]
    assert (await new_key(api, scopes=[]))[0] == 201


async def test_a_new_key_expires_no_later_than_its_creator(api: Api) -> None:
    _, expiring = await new_key(api, expires_at=SOON)
    assert [(await new_key(api, expiring, **fields))[0] for fields in ({}, {"expires_at": LATER})] == [403, 403]
    assert (await new_key(api, expiring, expires_at=SOON))[0] == 201


async def test_a_narrowed_key_creates_no_user_above_viewer_and_changes_no_password_or_role(api: Api) -> None:
    _, narrow = await new_key(api, scopes=["users"])
    for role, status in (("admin", 403), ("operator", 403), ("viewer", 201)):
        answer = await api.call("POST", "/users", {**ADA, "role": role}, headers=narrow)
        assert answer.status_code == status, role
    path = f"/users/{answer.json()['id']}"
    for change in ({"role": "admin"}, {"password": "battery staple"}, {"email": "eve@example.org"}):
        assert (await api.call("PATCH", path, change, headers=narrow)).status_code == 403, change
    assert (await api.call("PATCH", path, {"name": "Ada L."}, headers=narrow)).status_code == 200
    assert (await api.call("PATCH", path, {"role": "admin"})).status_code == 200


async def test_an_expiring_key_creates_no_user_above_viewer_and_changes_no_password_or_role(api: Api) -> None:
    _, expiring = await new_key(api, expires_at=SOON)
    for role, status in (("admin", 403), ("operator", 403), ("viewer", 201)):
        answer = await api.call("POST", "/users", {**ADA, "role": role}, headers=expiring)
        assert answer.status_code == status, role
    path = f"/users/{answer.json()['id']}"
    for change in ({"role": "admin"}, {"password": "battery staple"}, {"email": "eve@example.org"}):
        assert (await api.call("PATCH", path, change, headers=expiring)).status_code == 403, change


async def test_a_key_that_only_reads_login_links_makes_none(api: Api) -> None:
    for scope, status in (("login-links:read", 403), ("login-links", 201)):
        _, narrow = await new_key(api, scopes=[scope])
        assert (await api.call("POST", "/login-links", headers=narrow)).status_code == status, scope


async def test_only_an_instance_admin_revokes_the_first_key_and_never_the_last(api: Api) -> None:
    (first,) = (await api.get("/api-keys"))["items"]
    _, other = await new_key(api)
    refused = await api.call("DELETE", f"/api-keys/{first['id']}", headers=other)
    assert (refused.status_code, refused.json()["code"]) == (403, "refused")
    last = await api.call("DELETE", f"/api-keys/{first['id']}")
    assert last.status_code == 409
    assert "rota admin reset-key" in last.json()["detail"]
    assert (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).status_code == 201


async def test_the_first_key_is_replaced_on_the_machine(api: Api, clean_url: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=clean_url)
    path = await replace_key(settings)
    assert path == tmp_path / "data" / "admin.key"
    assert (await api.call("GET", "/runs")).status_code == 401
    headers = {"authorization": f"Bearer {path.read_text().strip()}"}
    made = await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"}, headers=headers)
    assert made.status_code == 201


@pytest.mark.parametrize("existing", ["open file", "link", "nothing"])
def test_a_secret_file_replaces_what_has_its_name(tmp_path: Path, existing: str) -> None:
    path, target = tmp_path / "admin.key", tmp_path / "elsewhere"
    target.write_text("theirs")
    if existing == "open file":
        path.write_text("old")
        path.chmod(0o666)
    elif existing == "link":
        path.symlink_to(target)
    write_secret(path, "secret")
    assert (path.read_text(), target.read_text()) == ("secret", "theirs")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not path.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, target]
