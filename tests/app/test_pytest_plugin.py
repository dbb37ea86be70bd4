"""The pytest plug-in in a user's own project: a clean directory, an own program, the entry point of the package."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.app.command_line import environment

APP = """
from rota import Rota, RunContext

app = Rota()


@app.task
async def order(ctx: RunContext, number: int = 1) -> str:
    paid = await ctx.step("pay", pay, number)
    await ctx.sleep("1h")
    return f"{paid} and shipped"


def pay(number: int) -> str:
    return f"paid {number}"


app.schedule("order-daily", order, cron="0 10 * * *")
"""
TESTS = """
from app import app


def test_a_day_passes_at_once(rota_world):
    rota = rota_world(app)
    rota.advance(hours=5)
    assert [run["outcome"] for run in rota.runs(target="order")] == ["paid 1 and shipped"]
    job_id = rota.enqueue("order", number=7)
    rota.drain()
    assert rota.runs(job_id=job_id)[0]["status"] == "paused"
    rota.advance(hours=1)
    assert rota.runs(job_id=job_id, status="success")[0]["outcome"] == "paid 7 and shipped"


async def play(rota):
    await rota.engine.enqueue(rota.org_id, "task", "order", [{"number": 3}])
    await rota.drain()


async def later(rota):
    await rota.advance(hours=3)
    return [run["outcome"] for run in await rota.runs(status="success") if run["input"] == {"number": 3}]


def test_an_order_survives_a_crash_at_any_point(rota_crashes):
    crashes = rota_crashes(app, play, check=later, points=5)
    assert len(crashes) == 5
    enqueued = [crash for crash in crashes if crash.result]
    assert crashes[0].result == []  # it died before it was enqueued
    assert len(enqueued) >= 1
    assert all(crash.result == ["paid 3 and shipped"] for crash in enqueued)


def test_fails(rota_crashes):
    crashes = rota_crashes(app, play, check=later, points=2)
    assert crashes[-1].result == ["never"]
"""


def pytest_in(place: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    return subprocess.run(
        command, cwd=place, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def test_fixtures_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_app.py").write_text(TESTS)
    answer = pytest_in(tmp_path, "-q", "--rota-seed=7")
    assert "1 failed, 2 passed" in answer.stdout, answer.stdout
    assert "rota: seed 7; repeat with --rota-seed=7" in answer.stdout  # shown with the failed test


def test_the_tests_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_page.py").write_text(page.split("```python\n")[1].split("```")[0])
    answer = pytest_in(tmp_path, "-q")
    assert "2 passed" in answer.stdout, answer.stdout


def test_the_plug_in_costs_nothing_until_it_is_used() -> None:
    (found,) = [entry for entry in entry_points(group="pytest11") if entry.name == "rota"]
    assert found.value == "rota.pytest_plugin"
    code = "import sys, rota.pytest_plugin; print([n for n in sys.modules if n.startswith(('rota.', 'sqlalchemy'))])"
    answer = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['rota.version', 'rota.pytest_plugin']"
