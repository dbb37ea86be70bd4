"""Contents of artifacts: in the database or, above a limit, in the object store.

An object is complete before its row is stored, and is deleted after it, so that no row names a missing object. What an
interrupted step leaves is in `object_operations`; `sweep` deletes it.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from rota.core.clock import real_sleep
from rota.core.errors import LogicError, NotFound, ObjectStoreMisconfigured, ObjectStoreUnavailable
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.statement import BoundStatement
from rota.engine import artifacts, object_operations
from rota.engine.object_store import ObjectStore, Source

if TYPE_CHECKING:
    from rota.engine.engine_base import EngineBase

READABLE_BYTES = 10 << 20  # a larger JSON or text in the object store is only downloaded
RENEW_SECONDS = 60.0
SWEEP_OBJECTS = 500

log = structlog.get_logger("rota.artifacts")


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an artifact, which is read in parts."""

    artifact_id: str
    content_type: str
    size: int
    sha256: str | None  # of an object
    source: "bytes | tuple[ObjectStore, str]"  # the content, or the store and the key of its object

    async def parts(self, start: int = 0, end: int | None = None, *, patient: bool = False) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` to before `end`. Raises ObjectStoreUnavailable, also if a whole content differs
        from its checksum, and NotFound for an object that is missing."""
        end = self.size if end is None else end
        if isinstance(self.source, bytes):
            yield self.source[start:end]
            return
        store, key = self.source
        digest = hashlib.sha256() if (start, end) == (0, self.size) else None
        try:
            async for part in store.read(key, start, end, patient=patient):
                if digest is not None:
                    await asyncio.to_thread(digest.update, part)
                    start += len(part)
                    if start >= end and digest.hexdigest() != self.sha256:
                        raise ObjectStoreUnavailable(f"artifact {self.artifact_id!r}: {store.url} returned other bytes")
                yield part
        except NotFound as error:
            remedy = "was it deleted there, or is the database older than the store?"
            raise NotFound(f"artifact {self.artifact_id!r}: {error.message}; {remedy}") from error


async def save(engine: "EngineBase", row: Record, labels: Mapping[int, str], source: Source) -> None:
    """Store an artifact with its content. Raises LogicError for a content above the limit, Invalid for an unknown
    parent, ObjectStoreUnavailable."""
    limit, store = engine.settings.artifact_limit, engine.objects
    size = len(source) if isinstance(source, bytes) else await asyncio.to_thread(size_of, source)
    if size > limit:
        raise LogicError(f"the artifact has {size} bytes; at most {limit} are allowed (ROTA_MAX_ARTIFACT_MB)")
    if store is not None and size > store.settings.inline_bytes:
        await save_object(engine, store, row, labels, source)
        return
    content = source if isinstance(source, bytes) else await asyncio.to_thread(source.read_bytes)
    if len(content) > limit:  # the file has grown
        raise LogicError(f"the artifact has {len(content)} bytes; at most {limit} are allowed (ROTA_MAX_ARTIFACT_MB)")
    row = {**row, "content": content}
    if row["parent_id"] in (None, row["run_id"]):
        await engine.db.statement(artifacts.insert_statement(row, int(row["parent_id"] is not None), labels))
    else:
        await engine.db.tx(artifacts.insert, row, labels)


async def save_object(
    engine: "EngineBase", store: ObjectStore, row: Record, labels: Mapping[int, str], source: Source
) -> None:
    """Record the upload, upload, then store the artifact and delete that record in one transaction."""
    level = 0
    if row["parent_id"] is not None:  # before the upload
        level = 1 + await engine.db.read(artifacts.level_of, row["org_id"], row["parent_id"], row["run_id"])
    key = f"{row['org_id']}/{row['id']}"
    await engine.db.tx(object_operations.begin_upload, key, row["org_id"])
    async with renewed(engine, key):
        stored = await store.put(key, source, row["content_type"], engine.settings.artifact_limit)
    columns = {"content": b"", "object_key": key, "size": stored.size, "sha256": stored.sha256}
    await engine.db.tx(commit_upload, key, artifacts.insert_statement({**row, **columns}, level, labels))


@asynccontextmanager
async def renewed(engine: "EngineBase", key: str) -> AsyncIterator[None]:
    """Renew the record of an upload while the block runs."""

    async def renew() -> None:
        while True:
            await real_sleep(RENEW_SECONDS)
            await engine.db.tx(object_operations.renew_upload, key)

    renewal = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)  # a failed renewal shows when the upload is committed


def commit_upload(tx: Tx, key: str, insert: BoundStatement[None]) -> None:
    """Store the artifact of an upload that is complete. Raises ObjectStoreUnavailable if it was given up."""
    if not object_operations.end_upload(tx, key):
        raise ObjectStoreUnavailable(f"the upload of {key} took too long and was given up")
    insert(tx)


def size_of(path: Path) -> int:
    """Return the size of a file. Raises LogicError."""
    try:
        if not path.is_file():
            raise LogicError(f"{path} is not a file")
        return path.stat().st_size
    except OSError as error:
        raise LogicError(f"{path} cannot be read: {error.strerror}") from error


# reading


async def open_content(engine: "EngineBase", org_id: str, artifact_id: str, public: bool = False) -> Content:
    """Return the content of an artifact or run; `public` as in `artifacts.get`. Raises NotFound,
    ObjectStoreUnavailable if this process has no object store."""
    stored = await engine.db.read(artifacts.content, org_id, artifact_id, public)
    if stored.object_key is None:
        return Content(artifact_id, stored.content_type, len(stored.content), None, stored.content)
    return Content(
        artifact_id, stored.content_type, stored.size, stored.sha256, (store_of(engine, artifact_id), stored.object_key)
    )


async def read_all(engine: "EngineBase", org_id: str, artifact_id: str) -> tuple[str, bytes]:
    """Return the content type and the content of an artifact, for a run."""
    content = await open_content(engine, org_id, artifact_id)
    return content.content_type, b"".join([part async for part in content.parts(patient=True)])


async def find(engine: "EngineBase", org_id: str, artifact_id: str, public: bool = False) -> Record:
    """Return an artifact with its data, where that is JSON or text of at most READABLE_BYTES."""
    return await with_data(engine, org_id, await engine.db.read(artifacts.get, org_id, artifact_id, public))


async def find_tree(engine: "EngineBase", org_id: str, artifact_id: str, public: bool = False) -> Record:
    """Return an artifact as `find`, with all artifacts below it, as `artifacts.tree` nests them."""
    return await with_data(engine, org_id, await engine.db.read(artifacts.tree, org_id, artifact_id, public))


async def with_data(engine: "EngineBase", org_id: str, record: Record) -> Record:
    """Return the record of an artifact with the data of its object, if it has one that is readable."""
    is_readable = artifacts.is_text(record["content_type"]) and record["size"] <= READABLE_BYTES
    if record["sha256"] is None or not is_readable:
        return record
    content = await open_content(engine, org_id, record["id"])
    read = b"".join([part async for part in content.parts()])
    return {**record, "data": artifacts.readable(content.content_type, read)}


def store_of(engine: "EngineBase", artifact_id: str) -> ObjectStore:
    if engine.objects is None:
        raise ObjectStoreUnavailable(
            f"artifact {artifact_id!r} is in an object store, and this process has none; set ROTA_ARTIFACTS_URL"
        )
    return engine.objects


# maintenance


async def sweep(engine: "EngineBase") -> int:
    """Delete objects whose artifacts were deleted, and those of uploads that were given up; returns their number. A
    store that does not answer is logged, and the next sweep goes on."""
    store, deleted = engine.objects, 0
    if store is None:
        return 0
    try:
        while abandoned := await engine.db.tx(object_operations.give_up_uploads, SWEEP_OBJECTS):
            await store.delete(abandoned)
            deleted += len(abandoned)
        while due := await engine.db.read(object_operations.due_deletions, store.settings.keep, SWEEP_OBJECTS):
            await store.delete(due)
            await engine.db.tx(object_operations.end_deletions, due)
            deleted += len(due)
    except ObjectStoreUnavailable as error:
        log.warning("objects not deleted; trying again later", error=error.message)
    if deleted:
        log.info("deleted objects of deleted artifacts and of unfinished uploads", count=deleted)
    return deleted


async def check_store(store: ObjectStore, db: Database) -> None:
    """Raise ObjectStoreUnavailable if the object store cannot be used. One that is only out of reach is logged if it
    has objects of this installation: it was right before, and schedules must not wait for it."""
    try:
        await store.check()
    except ObjectStoreUnavailable as error:
        if isinstance(error, ObjectStoreMisconfigured) or not await db.read(object_operations.has_objects):
            raise
        log.warning("the object store of artifacts is out of reach", error=error.message)
