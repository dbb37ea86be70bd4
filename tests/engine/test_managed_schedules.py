"""Schedules that a program, a workflow or a trigger manages: edits that their manager would undo are refused."""

import pytest

from rota import Rota
from rota.core.errors import Conflict
from rota.engine import schedules
from rota.engine.commands import Engine
from rota.kinds.tasks.declare import declare
from rota.testing import World, world
from tests.kinds.workflows.inbox import make_inbox

PROGRAM = "test.py"  # as `world` names it


def nightly_program() -> Rota:
    app = Rota()

    @app.task
    def clean() -> None: ...

    app.schedule("nightly", "clean", cron="0 2 * * *")
    return app


async def start(installation: World, app: Rota) -> Engine:
    """Declare the schedules of a program, as its start does."""
    await declare(installation.engine, "default", PROGRAM, [], app.schedules)
    return installation.engine


async def test_a_declared_schedule_is_edited_in_its_program_only(clean_url: str) -> None:
    app = nightly_program()
    async with world(app, database_url=clean_url) as installation:
        engine, org_id = await start(installation, app), installation.org_id
        with pytest.raises(Conflict, match=r"'nightly' is managed by program 'test': change it .*cron_expression"):
            await engine.edit_schedule(org_id, "nightly", {"cron_expression": "0 3 * * *"})
        with pytest.raises(Conflict, match="program 'test'"):
            await engine.delete_schedule(org_id, "nightly")
        assert await engine.delete_many(org_id, {}) == []
        await engine.edit_schedule(org_id, "nightly", {"enabled": False, "cron_expression": "0 2 * * *"})
        await start(installation, app)
        stored = await engine.db.read(schedules.get, org_id, "nightly")
        assert (stored.enabled, stored.deleted_at) == (False, None)


async def test_a_declared_schedule_is_deleted_by_force_or_when_its_program_dropped_it(clean_url: str) -> None:
    app = nightly_program()
    async with world(app, database_url=clean_url) as installation:
        engine, org_id = await start(installation, app), installation.org_id
        await engine.delete_schedule(org_id, "nightly", force=True)
        await start(installation, app)
        await declare(engine, "default", PROGRAM, [], [])
        assert [schedule.name for schedule in await engine.delete_many(org_id, {})] == ["nightly"]


async def test_the_schedules_of_producers_stay_with_their_workflow(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as installation:
        engine, org_id = installation.engine, installation.org_id
        (producer,) = await engine.pause_many(org_id, {"kind": "workflow"})
        await engine.resume_many(org_id, {"kind": "workflow"})
        with pytest.raises(Conflict, match="managed by workflow 'inbox': change and deploy the workflow, or pause it"):
            await engine.delete_schedule(org_id, producer.name, force=True)
        with pytest.raises(Conflict, match=r"is managed by workflow 'inbox'.*interval_seconds"):
            await engine.edit_schedule(org_id, producer.name, {"interval_seconds": 7200})
        with pytest.raises(Conflict, match="enabled"):
            await engine.edit_schedule(org_id, producer.name, {"enabled": False})
        assert await engine.delete_many(org_id, {}) == []
        assert (await installation.workflow("inbox"))["schedule"] == "checks every 5 minutes"
