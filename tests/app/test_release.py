"""`rota doctor --release`: what a new version of a program would break is named before it is deployed."""

import json
from pathlib import Path
from typing import Any

from rota import Prepare, Rota, RunContext, Workflow
from rota.app.doctor import Finding
from rota.app.programs import load_program
from rota.app.release import check_release
from rota.testing import World, world
from tests.app.command_line import run
from tests.kinds.tasks.durable import enqueue
from tests.kinds.workflows.inbox import make_inbox

NIGHTLY: dict[str, Any] = {"cron": "0 2 * * *", "params": {"day": "today"}}


def shop() -> Rota:
    app = Rota()

    @app.task
    def report(day: str) -> None: ...

    @app.task
    def clean() -> None: ...

    @app.task(version="1", on_new_version="park")
    async def parked(ctx: RunContext) -> None:
        await ctx.step("reserve", str)
        await ctx.sleep("1d")

    @app.task(version="1")
    async def order(ctx: RunContext, number: int) -> None:
        await ctx.step("reserve", str)
        await ctx.step(f"charge-{number}", str)
        await ctx.sleep("1d")

    app.schedule("nightly", "report", **NIGHTLY)
    return app


def by_name(findings: list[Finding], verdict: str = "wrong") -> dict[str, str]:
    return {finding.what: finding.detail for finding in findings if finding.verdict == verdict}


async def by_api(rota: World, name: str, **fields: object) -> None:
    await rota.engine.create_schedules(rota.org_id, [{"name": name, "interval": "1h", **fields}], by=None, source="api")


async def test_the_same_program_breaks_nothing(clean_url: str) -> None:
    async with world(shop(), database_url=clean_url) as rota:
        await by_api(rota, "weekly", target="report", input={"day": "monday"})
        job_id = await enqueue(rota, "order", number=7)
        await rota.drain()
        assert (await rota.runs(job_id=job_id))[-1]["reason"] == "sleep"
        findings = await check_release(rota.engine.db, shop(), "test.py")
        assert [(finding.what, finding.verdict) for finding in findings] == [("release", "ok")]


async def test_schedules_are_found_whose_task_or_parameters_change(clean_url: str) -> None:
    app = Rota()

    @app.task
    def report(day: str, region: int) -> None: ...

    app.schedule("nightly", "report", **NIGHTLY)
    async with world(shop(), database_url=clean_url) as rota:
        await by_api(rota, "weekly", target="report", input={"day": "monday"})
        await by_api(rota, "cleaning", target="clean")
        await by_api(rota, "off", target="clean", enabled=False)
        findings = by_name(await check_release(rota.engine.db, app, "test.py"))
        assert findings.keys() == {"schedule weekly", "schedule cleaning", "schedule nightly"}
        assert "input.region" in findings["schedule weekly"]
        assert "task 'clean' is no longer declared" in findings["schedule cleaning"]
        assert "the program would not start" in findings["schedule nightly"]
        other = by_name(await check_release(rota.engine.db, Rota(), "other.py"))
        assert other == {}  # another program, which declares nothing here
        vanished = by_name(await check_release(rota.engine.db, Rota(), "test.py"))
        assert "will be paused" in vanished["schedule nightly"]


async def test_begun_runs_are_found_that_the_new_code_cannot_go_on_with(clean_url: str) -> None:
    app = Rota()

    @app.task(version="2", on_new_version="park")
    async def parked(ctx: RunContext) -> None: ...

    @app.task(version="2")
    async def order(ctx: RunContext, number: int) -> None:
        await ctx.step(f"charge-{number}", str)

    async with world(shop(), database_url=clean_url) as rota:
        await enqueue(rota, "order", number=7)
        await enqueue(rota, "parked")
        await rota.drain()
        findings = await check_release(rota.engine.db, app, "test.py")
        assert "1 becomes 2: they would be parked" in by_name(findings)["1 begun run of parked"]
        # this module names all steps, so that the run can go on
        assert "must call the same steps: reserve, charge-7" in by_name(findings, "note")["1 begun run of order"]
        gone = by_name(await check_release(rota.engine.db, Rota(), "test.py"))
        assert "keep it until they have ended" in gone["1 begun run of order"]


async def test_steps_are_found_that_the_new_code_does_not_name(clean_url: str, tmp_path: Path) -> None:
    source = """from rota import Rota, RunContext
app = Rota()
@app.task(version="2")
async def order(ctx: RunContext, number: int):
    await ctx.step(f"charge-{number}", str)
    await ctx.step("pack", str)
"""
    (tmp_path / "test.py").write_text(source)
    async with world(shop(), database_url=clean_url) as rota:
        await enqueue(rota, "order", number=7)
        await rota.drain()
        findings = by_name(await check_release(rota.engine.db, load_program(str(tmp_path / "test.py")), "test.py"))
        assert "does not name their recorded steps reserve;" in findings["1 begun run of order"]
        printed = run(tmp_path, "-o", "json", "doctor", "--release", "test.py", "--database-url", clean_url)
        assert printed.returncode == 1, printed.stderr
        assert {
            item["what"]: item["detail"] for item in json.loads(printed.stdout)["items"]
        }.items() >= findings.items()


async def test_events_and_effects_are_found_that_lose_their_code(clean_url: str) -> None:
    inbox = make_inbox("sheets.blind")
    inbox.mail, inbox.sheets.breaks = ["a", "b"], [RuntimeError("no answer")]
    app, flow = Rota(), Workflow("inbox", topics=["mail", "rows"], connectors=["calendar"])

    @flow.consumer(subscribe=["rows"])
    class Notify:
        async def prepare(self, ctx: object, state: object) -> Prepare:
            return Prepare(reservations={})

    app.workflow(flow)
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        assert [(await rota.workflow("inbox"))["name"], len(inbox.sheets.rows)] == ["inbox", 1]
        details = [finding.detail for finding in await check_release(rota.engine.db, app, "test.py")]
        assert [detail.partition(":")[0] for detail in details] == [
            "topic 'mail' has 1 pending event, but no consumer in the new code",
            "1 unsettled effect needs sheets.blind, which the program does not register",
            "may call calendar, which the program does not register",
        ]
        gone = [finding.detail for finding in await check_release(rota.engine.db, Rota(), "test.py")]
        assert "will be paused with 1 pending event" in gone[0]
        assert [finding.verdict for finding in await check_release(rota.engine.db, inbox.app, "test.py")] == ["ok"]


def test_the_command_fails_for_a_release_that_breaks_something(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from rota import Rota\napp = Rota()\n")
    missing = run(tmp_path, "doctor", "--release", "app.py")
    assert (missing.returncode, "does not exist" in missing.stdout) == (1, True)
    assert run(tmp_path, "migrate").returncode == 0
    fresh = run(tmp_path, "doctor", "--release", "app.py")
    assert (fresh.returncode, "'default' not found" in fresh.stdout) == (1, True)
    (tmp_path / "app.py").write_text("import nothing_of_this_name\n")
    wrong = run(tmp_path, "-o", "json", "doctor", "--release", "app.py")
    assert (wrong.returncode, "nothing_of_this_name" in wrong.stderr) == (2, True)
