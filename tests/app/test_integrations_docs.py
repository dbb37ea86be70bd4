"""Executes the code of docs/integrations.md."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from rota import Rota
from rota.access.store import accounts
from rota.core.clock import SystemClock
from rota.db.connection import open_database
from rota.testing import world
from tests.app.callers import sync_url
from tests.databases import copy_sqlite, empty_postgres

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
FILES = dict(re.findall(r"```python (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
SQL = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(code: str, **names: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page", **names}
    exec(compile(code, str(PAGE), "exec"), namespace)
    return namespace


@pytest.fixture
def postgres(shared_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    empty_postgres(shared_postgres)

    async def prepare() -> None:
        db = open_database(shared_postgres)
        await db.tx(accounts.ensure_default_org, SystemClock().now())
        await db.close()

    asyncio.run(prepare())
    with psycopg.connect(shared_postgres) as connection:
        connection.execute("DROP TABLE IF EXISTS shop_orders")
        connection.execute("CREATE TABLE shop_orders (name text)")
    monkeypatch.setenv("ROTA_DATABASE_URL", shared_postgres)
    return shared_postgres


def test_orders_and_jobs_commit_together_in_each_language(postgres: str) -> None:
    names = run(BLOCKS[0], DATABASE=sync_url(postgres, "postgresql+psycopg"))
    assert len(names["job_id"]) == 26
    more = asyncio.run(run(BLOCKS[1], POSTGRESQL=postgres, **names)["place_orders"]())
    with psycopg.connect(postgres) as connection:
        org_id = connection.execute("SELECT id FROM orgs").fetchone()
        assert org_id is not None
        connection.execute(  # as a worker declares it
            "INSERT INTO tasks (id, org_id, name, task_type, command, enabled, source, version, created_at, "
            "updated_at) VALUES ('t', %s, 'shop.confirm', 'python', 'shop.confirm', true, 'code', '1', now(), now())",
            org_id,
        )
        connection.commit()
        for statement in SQL[0].split(";\n"):
            connection.execute(statement)
        stored = connection.execute("SELECT id, payload, route FROM jobs ORDER BY id").fetchall()
        orders = [name for (name,) in connection.execute("SELECT name FROM shop_orders ORDER BY name").fetchall()]
    assert orders == ["A1", "B1", "B2", "C1"]
    assert [job_id for job_id, _, _ in stored[:3]] == [names["job_id"], *more]
    assert {route for _, _, route in stored} == {"task:default:shop.confirm"}
    assert [re.sub(r"\W", "", payload)[-2:] for _, payload, _ in stored] == orders


async def test_the_site_is_mounted(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    copy_sqlite(sqlite_template, url)
    monkeypatch.setenv("ROTA_DATABASE_URL", url)
    monkeypatch.setenv("ROTA_DATA_DIR", str(tmp_path))
    names = run(BLOCKS[2], app=Rota())
    web = names["web"]
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://127.0.0.1") as client,
    ):
        assert (await client.get("/rota/health/live")).status_code == 200


async def test_a_task_has_the_context_of_flask() -> None:
    app = Rota()
    names = run(BLOCKS[3], app=app)
    assert names["thank"]("A1") == "shop thanks for A1"
    async with world(app) as rota:
        await rota.engine.enqueue(rota.org_id, "task", "shop.thank", [{"order": "A2"}])
        await rota.drain()
        (ended,) = await rota.runs()
    assert (ended["status"], ended["outcome"]) == ("success", "shop thanks for A2")


def test_the_django_project_of_the_page_finds_its_tasks(tmp_path: Path) -> None:
    database = 'DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}\nUSE_TZ = True\n'
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "settings.py").write_text(database + FILES["settings.py"])
    (tmp_path / "shop" / "tasks.py").write_text(FILES["shop/tasks.py"])
    code = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
from rota.django import app
assert app.registry.find("shop.confirm") and app.schedules[0]["name"] == "nightly"
assert os.environ["ROTA_CONCURRENCY"] == "20" and os.environ["ROTA_DATABASE_URL"].endswith("/shop.db")
"""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
