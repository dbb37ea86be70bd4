"""Artifacts in an object store: a real S3 server, and a directory."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from rota import ArtifactManager
from rota.core.errors import LogicError, NotFound, ObjectStoreMisconfigured, ObjectStoreUnavailable
from rota.core.model import PAYLOAD_LIMIT
from rota.db.connection import open_database
from rota.db.crash_points import at_each_statement
from rota.db.tables import artifacts, object_operations
from rota.db.wake import Wake
from rota.engine import artifact_contents, object_store, runs
from rota.engine.artifact_contents import check_store, sweep
from rota.engine.commands import Engine
from rota.engine.engine_settings import ObjectStoreSettings
from rota.engine.extensions import prune_in_chunks
from rota.engine.maintenance import Maintenance
from rota.engine.object_store import UPLOAD_PART_BYTES, ObjectStore
from tests.kinds.tasks.harness import ISOLATED_PROGRAM, TaskHarness, open_task_harness
from tests.object_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, ObjectServer

INLINE_BYTES = 1000
LARGE = b"x" * 5000
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.fixture
def server(shared_server: ObjectServer) -> ObjectServer:
    """The server, running and with an empty bucket."""
    if shared_server.process is None:
        shared_server.start()
    for key in shared_server.stored_keys():
        shared_server.client().delete_object(Bucket=BUCKET, Key=key)
    return shared_server


def settings_of(server: ObjectServer, **fields: Any) -> ObjectStoreSettings:
    settings = ObjectStoreSettings(server.url, server.endpoint, inline_bytes=INLINE_BYTES, keep=timedelta(0))
    return replace(settings, **fields)


@pytest.fixture
async def stored(clean_url: str, server: ObjectServer) -> AsyncIterator[TaskHarness]:
    """A harness whose artifacts above 1000 bytes are objects of the S3 server."""
    harness = await open_task_harness(clean_url, objects=settings_of(server))
    yield harness
    await harness.check()
    await harness.close()


@pytest.fixture(params=["s3", "file"])
async def either(
    request: pytest.FixtureRequest, clean_url: str, tmp_path: Path
) -> AsyncIterator[tuple[TaskHarness, Callable[[], list[str]]]]:
    """A harness, and a function that returns the keys of the objects below the URL."""
    if request.param == "s3":
        server: ObjectServer = request.getfixturevalue("server")
        objects, keys = settings_of(server), lambda: [key.removeprefix("rota/") for key in server.stored_keys()]
    else:
        folder = tmp_path / "objects"
        objects = ObjectStoreSettings(folder.as_uri(), inline_bytes=INLINE_BYTES, keep=timedelta(0))
        keys = lambda: sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())  # noqa: E731
    harness = await open_task_harness(clean_url, objects=objects)
    yield harness, keys
    await harness.check()
    await harness.close()


async def rows(harness: TaskHarness) -> dict[str, Any]:
    return {row.label: row for row in await harness.rows(select(artifacts).order_by(artifacts.c.id))}


async def age(harness: TaskHarness, by: timedelta) -> None:
    """Let all operations on objects be older."""

    def step(tx: Any) -> None:
        for row in tx.execute(select(object_operations)).all():
            stmt = update(object_operations).where(object_operations.c.object_key == row.object_key)
            tx.execute(stmt.values(updated_at=row.updated_at - by))

    await harness.db.tx(step)


async def operations(harness: TaskHarness) -> list[str]:
    return [row.operation for row in await harness.rows(select(object_operations))]


async def test_a_large_content_is_an_object_and_a_small_one_is_in_its_row(
    either: tuple[TaskHarness, Callable[[], list[str]]], tmp_path: Path
) -> None:
    harness, keys = either
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(UPLOAD_PART_BYTES + 5))

    @harness.program.task
    async def save(artifacts: ArtifactManager) -> dict[str, Any]:
        small = await artifacts.save("a" * INLINE_BYTES, label="small")
        large = await artifacts.save("b" * (INLINE_BYTES + 1), label="large", content_type="text/csv")
        file = await artifacts.save_file(big, label="file", parent=small)
        size = await artifacts.load_file(file, tmp_path / "back.bin")
        return {"data": (await artifacts.find(large))["data"], "size": size}

    run = await harness.run(save)
    assert run["status"] == "success", run["error"]
    assert run["outcome"] == {"data": "b" * (INLINE_BYTES + 1), "size": big.stat().st_size}
    assert (tmp_path / "back.bin").read_bytes() == big.read_bytes()
    saved = await rows(harness)
    assert saved["small"].object_key is None
    assert [saved[label].content for label in ("large", "file")] == [b"", b""]
    assert keys() == sorted(f"{harness.org_id}/{saved[label].id}" for label in ("large", "file"))
    assert (saved["file"].size, saved["file"].level, saved["large"].level) == (big.stat().st_size, 2, 1)
    assert await operations(harness) == []
    other = harness.org_id[::-1]
    with pytest.raises(NotFound):
        await artifact_contents.open_content(harness.engine, other, saved["large"].id)


async def test_an_object_has_the_content_type_of_its_artifact(stored: TaskHarness, server: ObjectServer) -> None:
    @stored.program.task
    async def save(artifacts: ArtifactManager) -> None:
        await artifacts.save(LARGE, content_type="image/png")

    await stored.run(save)
    (key,) = server.stored_keys()
    assert server.client().head_object(Bucket=BUCKET, Key=key)["ContentType"] == "image/png"


async def test_results_of_any_form_may_be_objects(stored: TaskHarness, server: ObjectServer) -> None:
    @stored.program.task
    def raw() -> bytes:
        return LARGE

    @stored.program.task
    def long_json() -> list[int]:
        return [0] * PAYLOAD_LIMIT

    assert (await stored.run(raw))["outcome"]["content_type"] == "application/octet-stream"
    outcome = (await stored.run(long_json))["outcome"]
    size = 2 * PAYLOAD_LIMIT + 1
    assert (outcome["content_type"], outcome["size"]) == ("application/json", size)
    artifact = await artifact_contents.find(stored.engine, stored.org_id, outcome["artifact_id"])
    assert (artifact["data"], artifact["size"]) == ([0] * PAYLOAD_LIMIT, size)
    assert len(server.stored_keys()) == 2


async def test_a_data_frame_is_loaded_from_its_object(stored: TaskHarness, server: ObjectServer) -> None:
    import polars

    @stored.program.task
    def make() -> polars.DataFrame:
        return polars.DataFrame({"number": range(5000)})

    @stored.program.task
    def total(frame: polars.DataFrame) -> int:
        return int(frame["number"].sum())

    made = await stored.run(make)
    assert len(server.stored_keys()) == 1
    assert (await stored.run(total, frame=made["outcome"]))["outcome"] == sum(range(5000))


async def test_a_command_does_not_get_the_credentials_of_the_store(clean_url: str) -> None:
    harness = await open_task_harness(clean_url, objects=ObjectStoreSettings("s3://bucket", "", INLINE_BYTES, DAY))
    try:
        command = 'echo "$AWS_REGION ${AWS_ACCESS_KEY_ID:-none} ${AWS_SECRET_ACCESS_KEY:-none}"'
        run = await harness.execute(await harness.store(command, task_type="shell", env=["AWS_*"]))
        assert await harness.logs(run) == [f"{REGION} none none"]
    finally:
        await harness.close()


async def test_an_isolated_task_uses_the_store_from_its_own_process(clean_url: str, server: ObjectServer) -> None:
    harness = await open_task_harness(clean_url, ISOLATED_PROGRAM, objects=settings_of(server, inline_bytes=10))
    try:
        run = await harness.run("too_large")  # not with the limit of this worker
        assert run["status"] == "success", run["error"]
        (saved,) = await harness.rows(select(artifacts))
        _, content = await artifact_contents.read_all(harness.engine, harness.org_id, saved.id)
        assert (content, len(server.stored_keys())) == (b"x" * 1001, 1)
    finally:
        await harness.close()


async def test_too_large_contents_are_refused_before_the_upload(
    clean_url: str, server: ObjectServer, tmp_path: Path
) -> None:
    harness = await open_task_harness(clean_url, objects=settings_of(server), artifact_limit=4000)
    try:
        (tmp_path / "file").write_bytes(LARGE)
        manager = ArtifactManager(harness.engine, harness.org_id)
        for wrong in (manager.save(LARGE), manager.save_file(tmp_path / "file")):
            with pytest.raises(LogicError, match="has 5000 bytes; at most 4000 are allowed"):
                await wrong
        for path, message in ((tmp_path, "is not a file"), (tmp_path / "none", "is not a file")):
            with pytest.raises(LogicError, match=message):
                await manager.save_file(path)
        assert (server.stored_keys(), await operations(harness)) == ([], [])
    finally:
        await harness.close()


async def test_a_crash_at_any_statement_leaves_no_row_without_its_object(
    stored: TaskHarness, server: ObjectServer
) -> None:
    statements: list[str] = []
    with at_each_statement(statements.append):
        await ArtifactManager(stored.engine, stored.org_id).save(LARGE)
    for number in range(1, len(statements) + 1):
        seen = 0

        def crash(_: str, last: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen == last:
                raise asyncio.CancelledError

        db = open_database(stored.db.url)  # its connections end with it, as those of a process do
        engine = Engine(db, stored.clock, Wake(), {}, stored.engine.settings)
        with at_each_statement(crash), pytest.raises(asyncio.CancelledError):
            await ArtifactManager(engine, stored.org_id).save(LARGE)
        await db.close()
    keys = set(server.stored_keys())
    stored_rows = await stored.rows(select(artifacts))
    assert {f"rota/{row.object_key}" for row in stored_rows} <= keys
    orphans = len(keys) - len(stored_rows)
    assert orphans > 0
    assert await sweep(stored.engine) == 0  # a live process may still upload
    await age(stored, timedelta(hours=2))
    assert await sweep(stored.engine) >= orphans
    assert set(server.stored_keys()) == {f"rota/{row.object_key}" for row in stored_rows}


async def test_an_upload_that_was_given_up_stores_no_artifact(
    stored: TaskHarness, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for hours goes on: its object is deleted, at the latest a day later."""
    manager, put = ArtifactManager(stored.engine, stored.org_id), ObjectStore.put

    async def slow(self: ObjectStore, *args: Any) -> Any:
        await age(stored, timedelta(hours=2))
        await sweep(stored.engine)
        return await put(self, *args)

    monkeypatch.setattr(ObjectStore, "put", slow)
    with pytest.raises(ObjectStoreUnavailable, match="took too long"):
        await manager.save(LARGE)
    assert (len(server.stored_keys()), await operations(stored)) == (1, ["abandoned"])
    await sweep(stored.engine)
    assert len(server.stored_keys()) == 1
    await age(stored, 2 * DAY)
    assert await sweep(stored.engine) == 1
    assert (server.stored_keys(), await operations(stored)) == ([], [])


async def test_retention_deletes_the_objects_of_deleted_runs(
    either: tuple[TaskHarness, Callable[[], list[str]]],
) -> None:
    harness, keys = either

    @harness.program.task
    async def save(artifacts: ArtifactManager) -> None:
        for _ in range(3):
            await artifacts.save(LARGE)

    await harness.run(save)
    harness.clock.set(harness.clock.now() + 20 * DAY)
    await harness.run(save)
    assert len(keys()) == 6
    maintenance = Maintenance(harness.engine, harness.worker.id)
    await maintenance.prune(harness.clock.now() + 15 * DAY)
    kept = await harness.rows(select(artifacts))
    assert keys() == sorted(row.object_key for row in kept)
    assert (len(kept), await operations(harness)) == (3, [])


async def test_an_object_stays_as_long_as_backups_may_name_it(clean_url: str, server: ObjectServer) -> None:
    harness = await open_task_harness(clean_url, objects=settings_of(server, keep=7 * DAY))
    try:

        @harness.program.task
        def raw() -> bytes:
            return LARGE

        run = await harness.run(raw)
        later = harness.clock.now() + 40 * DAY
        await prune_in_chunks(harness.db, runs.prune, harness.org_id, None, later, [run["status"]])
        assert (await harness.rows(select(artifacts)), await operations(harness)) == ([], ["delete"])
        await age(harness, 6 * DAY)
        assert await sweep(harness.engine) == 0
        assert len(server.stored_keys()) == 1
        await age(harness, 2 * DAY)
        assert await sweep(harness.engine) == 1
        assert server.stored_keys() == []
    finally:
        await harness.close()


async def test_a_run_waits_for_a_store_that_is_stopped_and_started(stored: TaskHarness, server: ObjectServer) -> None:
    @stored.program.task
    def raw() -> bytes:
        return LARGE

    server.stop()
    running = asyncio.ensure_future(stored.run(raw))
    await asyncio.sleep(1)
    assert not running.done()
    await asyncio.to_thread(server.start)
    run = await running
    assert run["status"] == "success", run["error"]
    assert len(server.stored_keys()) == 1


async def test_a_run_fails_as_transient_if_the_store_stays_away(
    stored: TaskHarness, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.5)

    @stored.program.task
    def raw() -> bytes:
        return LARGE

    away = settings_of(server, endpoint="http://127.0.0.1:1")
    there, stored.engine.objects = stored.engine.objects, ObjectStore(away)
    run = await stored.run(raw)
    assert (run["status"], run["reason"]) == ("paused", "transient")
    assert f"object store {server.url} is not available" in run["error"]["message"]
    assert SECRET_KEY not in str(run["error"])
    assert await stored.rows(select(artifacts)) == []
    assert await sweep(stored.engine) == 0  # logged, and tried again later
    stored.engine.objects = there
    stored.clock.set(stored.clock.now() + DAY)
    await stored.run_due()
    last = await stored.last_run(run["job_id"])
    assert last["status"] == "success", last["error"]


async def test_a_wrong_store_is_refused_by_its_check(server: ObjectServer, clean_url: str) -> None:
    harness = await open_task_harness(clean_url, objects=settings_of(server))
    try:
        await check_store(ObjectStore(settings_of(server)), harness.db)
        with pytest.raises(ObjectStoreMisconfigured, match=r"s3://none/x does not exist \(NoSuchBucket\); check ROTA_"):
            await check_store(ObjectStore(settings_of(server, url="s3://none/x")), harness.db)
        away = ObjectStore(settings_of(server, endpoint="http://127.0.0.1:1"))
        with pytest.raises(ObjectStoreUnavailable, match=r"is not available: .*; check ROTA_ARTIFACTS_URL, ROTA_ART"):
            await check_store(away, harness.db)
        await ArtifactManager(harness.engine, harness.org_id).save(LARGE)
        await check_store(away, harness.db)  # it was right before: only logged
        server.check_keys(required=True)
        with pytest.raises(ObjectStoreMisconfigured, match="refuses these credentials") as error:
            await check_store(ObjectStore(settings_of(server)), harness.db)
        assert SECRET_KEY not in error.value.message
    finally:
        server.check_keys(required=False)
        await harness.close()


async def test_a_missing_library_is_named_with_its_extra(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ObjectStoreMisconfigured, match=r"pip install 'rota-scheduler\[objects\]'"):
        await ObjectStore(settings_of(server)).check()


async def test_a_process_without_the_store_says_so(stored: TaskHarness, clean_url: str) -> None:
    artifact_id = await ArtifactManager(stored.engine, stored.org_id).save(LARGE)
    other = await open_task_harness(clean_url)
    try:
        with pytest.raises(ObjectStoreUnavailable, match="this process has none; set ROTA_ARTIFACTS_URL"):
            await artifact_contents.read_all(other.engine, stored.org_id, artifact_id)
        assert await sweep(other.engine) == 0
    finally:
        await other.close()


async def test_a_changed_or_missing_object_is_not_passed_on(stored: TaskHarness, server: ObjectServer) -> None:
    artifact_id = await ArtifactManager(stored.engine, stored.org_id).save(LARGE)
    (key,) = server.stored_keys()
    server.client().put_object(Bucket=BUCKET, Key=key, Body=b"y" * len(LARGE))
    with pytest.raises(ObjectStoreUnavailable, match="returned other bytes"):
        await artifact_contents.read_all(stored.engine, stored.org_id, artifact_id)
    server.client().delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(NotFound, match=r"does not exist in s3://artifacts/rota; was it deleted there"):
        await artifact_contents.read_all(stored.engine, stored.org_id, artifact_id)
