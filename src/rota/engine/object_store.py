"""The object store with large contents of artifacts: S3 and what speaks its protocol, Google Cloud Storage, Azure, a
directory. By the library obstore, which is imported with the first operation."""

import asyncio
import contextlib
import hashlib
import io
import os
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import LogicError, NotFound, ObjectStoreMisconfigured, ObjectStoreUnavailable
from rota.core.ids import new_id
from rota.engine.engine_settings import ObjectStoreSettings

R = TypeVar("R")
Source = bytes | Path

UPLOAD_PART_BYTES = 8 << 20
UPLOAD_PARTS = 2  # that are uploaded at once
READ_PART_BYTES = 1 << 20
PART_SECONDS = 30.0  # that a read waits for its next bytes
REQUEST_SECONDS = 60  # of one request with its body; a read that takes longer goes on with another
PATIENCE_SECONDS = 180.0  # that a run waits for a store that does not answer
QUICK_SECONDS = 5.0  # that a request of the API and a check wait
FIRST_RETRY_SECONDS = 0.5  # doubled up to MAX_RETRY_SECONDS
MAX_RETRY_SECONDS = 5.0
REASON_CHARACTERS = 300
REMEDIES = {
    "s3": "ROTA_ARTIFACTS_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "the mode of the directory",
}
CREDENTIALS = {  # variables that give access to all objects
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": (
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        *("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_TOKEN"),
    ),
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that was uploaded."""

    size: int
    sha256: str


class ObjectStore:
    """Objects below a URL, by their keys. Errors name the URL, which has no secrets."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self.settings, self.url = settings, settings.url
        parts = urlsplit(settings.url)
        self.scheme = parts.scheme
        self.directory = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._stores: dict[float, Any] = {}

    async def put(self, key: str, source: Source, content_type: str, limit: int) -> StoredObject:
        """Upload bytes or a file, which is streamed; waits up to PATIENCE_SECONDS for a store that does not answer.
        Raises LogicError for a file that has more than `limit` bytes or cannot be read, ObjectStoreUnavailable."""
        library()
        since, delay = stopwatch(), FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._put_once(key, source, content_type, limit)
            except ObjectStoreUnavailable:  # also a refusal: keys and buckets are put right while runs wait
                if stopwatch() - since >= PATIENCE_SECONDS:
                    raise
            await real_sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)

    async def _put_once(self, key: str, source: Source, content_type: str, limit: int) -> StoredObject:
        obstore = library()
        store = self._store(PATIENCE_SECONDS)
        options: dict[str, Any] = {"chunk_size": UPLOAD_PART_BYTES, "max_concurrency": UPLOAD_PARTS}
        if self.directory is None:
            options["attributes"] = {"Content-Type": content_type}
        with contextlib.closing(Upload(source, limit)) as upload:
            content = await upload.whole() if upload.is_small else upload.parts()
            try:
                await self._call(obstore.put_async(store, key, content, **options))
            except ObjectStoreUnavailable:
                if upload.error is not None:
                    raise upload.error from None
                raise
        if self.directory is not None:
            await asyncio.to_thread(flush, self.directory / key)
        size = (await self._call(obstore.head_async(store, key)))["size"]
        if size != upload.size:
            raise ObjectStoreUnavailable(f"{self.url}: object {key} has {size} of {upload.size} bytes after its upload")
        return StoredObject(upload.size, upload.digest.hexdigest())

    async def read(self, key: str, start: int, end: int, *, patient: bool = False) -> AsyncIterator[bytes]:
        """Yield the bytes of an object from `start` to before `end` in parts; goes on where an answer breaks off.
        Raises NotFound, or ObjectStoreUnavailable after a request without any byte."""
        obstore = library()
        seconds = PATIENCE_SECONDS if patient else QUICK_SECONDS
        store, position = self._store(seconds), start
        while position < end:
            before = position
            try:
                options = {"range": (position, end)}
                answer = await self._call(obstore.get_async(store, key, options=options), key, 2 * seconds)
                stream = answer.stream(READ_PART_BYTES)
                while part := await self._call(next_part(stream), key, PART_SECONDS):
                    position += len(part)
                    yield part
            except ObjectStoreUnavailable:
                if position == before:
                    raise
            else:
                if position < end:
                    raise ObjectStoreUnavailable(f"object {key} of {self.url} ends after {position} of {end} bytes")

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are skipped. Raises ObjectStoreUnavailable."""
        obstore = library()
        store = self._store(QUICK_SECONDS)
        if self.scheme == "s3":  # the only one with a request for many that accepts missing objects
            await self._call(obstore.delete_async(store, list(keys)))
            return
        for key in keys:
            with contextlib.suppress(NotFound):
                await self._call(obstore.delete_async(store, key), key)

    async def check(self) -> None:
        """Write, read and delete a small object. Raises ObjectStoreUnavailable, or ObjectStoreMisconfigured if an
        operator must act, both with what to check."""
        obstore = library()
        store, key = self._store(QUICK_SECONDS), f".rota-check/{new_id()}"
        try:
            await self._call(obstore.put_async(store, key, b"rota"), seconds=2 * QUICK_SECONDS)
            answer = await self._call(obstore.get_async(store, key), seconds=2 * QUICK_SECONDS)
            if await self._call(next_part(answer.stream()), seconds=2 * QUICK_SECONDS) != b"rota":
                raise ObjectStoreMisconfigured(f"{self.url} returns other content than was written")
            await self._call(obstore.delete_async(store, key), seconds=2 * QUICK_SECONDS)
        except ObjectStoreUnavailable as error:
            remedy = f"check ROTA_ARTIFACTS_URL, {REMEDIES[self.scheme]}"
            raise type(error)(f"{error.message}; {remedy}") from error

    def _store(self, seconds: float) -> Any:
        """Return the store whose requests are repeated for this long. Raises ObjectStoreMisconfigured."""
        if seconds not in self._stores:
            self._stores[seconds] = self._open(seconds)
        return self._stores[seconds]

    def _open(self, seconds: float) -> Any:
        from obstore.store import LocalStore, from_url

        try:
            if self.directory is not None:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                return LocalStore(self.directory)
            options: dict[str, Any] = {
                "client_options": self._client_options(),
                "retry_config": retries(seconds),
            }
            if self.settings.endpoint:
                options["config"] = {"endpoint": self.settings.endpoint}
            return from_url(self.url, **options)
        except (OSError, ValueError) as error:
            raise ObjectStoreMisconfigured(f"{self.url} cannot be used: {error}") from error
        except Exception as error:  # of the library, whose classes differ by store
            raise self._error(error) from None

    def _client_options(self) -> dict[str, object]:
        options: dict[str, object] = {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=QUICK_SECONDS),
        }
        return {**options, "allow_http": True} if self.settings.endpoint.startswith("http://") else options

    async def _call(self, operation: Awaitable[R], key: str | None = None, seconds: float | None = None) -> R:
        """Await an operation of the library. Raises NotFound for a missing object `key`, else ObjectStoreUnavailable,
        also after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await operation
        except TimeoutError as error:
            if seconds is None:
                raise self._error(error) from None
            message = f"object store {self.url} is not available: no answer after {seconds:g} s"
            raise ObjectStoreUnavailable(message) from None
        except FileNotFoundError as error:
            if key is not None and "NoSuchBucket" not in str(error):
                raise NotFound(f"object {key} does not exist in {self.url}") from None
            raise self._error(error) from None
        except Exception as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> ObjectStoreUnavailable:
        """Return the error of Rota for one of the library, without the queries of URLs, which may have signatures."""
        from obstore import exceptions

        text = str(error)
        code = match[1] if (match := re.search(r"<Code>(\w+)</Code>", text)) else None
        refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
        if isinstance(error, refused) or code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"):
            return ObjectStoreMisconfigured(f"{self.url} refuses these credentials ({code or 'access denied'})")
        if isinstance(error, FileNotFoundError) and code != "NoSuchUpload":
            return ObjectStoreMisconfigured(f"{self.url} does not exist ({code or 'not found'})")
        reason = re.sub(r"\?\S*", "", text.split("\n\n")[0].split(": <")[0]).replace("\n", " ")[:REASON_CHARACTERS]
        if isinstance(error, exceptions.BaseError) and ("builder error" in text or "Generic URL error" in text):
            return ObjectStoreMisconfigured(f"{self.url} cannot be used: {reason}")
        return ObjectStoreUnavailable(f"object store {self.url} is not available: {reason}")


def library() -> Any:
    """Return the library. Raises ObjectStoreMisconfigured if it is not installed."""
    try:
        import obstore
    except ImportError as error:
        raise ObjectStoreMisconfigured(
            "ROTA_ARTIFACTS_URL needs the library obstore; install it: pip install 'rota-scheduler[objects]'"
        ) from error
    return obstore


class Upload:
    """The content of one attempt of an upload, with its size and checksum so far. Raises LogicError for a file that
    cannot be opened."""

    def __init__(self, source: Source, limit: int) -> None:
        self.source, self.limit = source, limit
        self.size, self.digest = 0, hashlib.sha256()
        self.error: LogicError | None = None  # of the source; the library would hide its class
        self.is_small = isinstance(source, bytes) and len(source) <= UPLOAD_PART_BYTES
        self.file = io.BytesIO(source) if isinstance(source, bytes) else open_file(source)

    def close(self) -> None:
        self.file.close()

    async def whole(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the content in parts. Raises LogicError, and keeps it as `error`, if it is too large or cannot be
        read."""
        try:
            while part := await asyncio.to_thread(self.file.read, UPLOAD_PART_BYTES):
                self.size += len(part)
                if self.size > self.limit:
                    raise LogicError(f"the artifact has more than {self.limit} bytes (ROTA_MAX_ARTIFACT_MB)")
                await asyncio.to_thread(self.digest.update, part)
                yield part
        except OSError as error:
            self.error = LogicError(f"{self.source!s} cannot be read: {error.strerror}")
            raise self.error from error
        except LogicError as error:
            self.error = error
            raise


def open_file(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise LogicError(f"{path} cannot be read: {error.strerror}") from error


async def next_part(stream: Any) -> bytes:
    """Return the next bytes of an answer, none at its end."""
    async for part in stream:
        return bytes(part)
    return b""


def retries(seconds: float) -> dict[str, object]:
    """Return how the library repeats a request: with growing delays, until this time is over."""
    delays = {
        "init_backoff": timedelta(seconds=FIRST_RETRY_SECONDS),
        "max_backoff": timedelta(seconds=MAX_RETRY_SECONDS),
        "base": 2,
    }
    return {"max_retries": 1000, "retry_timeout": timedelta(seconds=seconds), "backoff": delays}


def flush(path: Path) -> None:
    """Flush a file and its directory to disk."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
