"""Connectors that come with Rota. Each of their mutations can be reconciled."""

import csv
import fcntl
import io
import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx

from rota.core.effects import Applied, NotApplied, Unsure, not_applied
from rota.core.errors import AuthError, LogicError, PermissionDenied, TransientError
from rota.frame.http.outgoing import pin
from rota.kinds.workflows.connectors.base import mutation, read
from rota.kinds.workflows.connectors.sql import OutsideDatabase

RESPONSE_BYTES = 1024 * 1024  # of a body that are read, after decompression
GZIP_OR_ZLIB = 47  # zlib's `wbits` for both


class Http:
    """HTTP requests to the allowed hosts: `Http(allow=["api.example.org"])`.

    Mutations carry their key in the header `Idempotency-Key`. Whether one happened is asked of `status_url`, which must
    answer 200 for a key that was done and 404 for one that was not; with `replays` the service itself keeps the keys,
    and the request is sent again with the same key. A host that resolves to an address of the inner
    network is refused, unless `private` allows it. Redirects are not followed.
    """

    def __init__(
        self, allow: Collection[str], *, headers: Mapping[str, str] | None = None, status_url: str | None = None,
        replays: bool = False, private: bool = False, timeout: float = 30,
    ) -> None:  # fmt: skip
        self.allow, self.headers, self.private = frozenset(allow), dict(headers or {}), private
        self.status_url, self.replays, self.timeout = status_url, replays, timeout

    @read
    async def get(self, url: str, params: Mapping[str, object] | None = None) -> object:
        return content(checked(await self._send("GET", url, params=params)))

    @mutation(reconcile="find")
    async def send(self, url: str, json: object = None, method: str = "POST", *, idempotency_key: str) -> object:
        """Send JSON by `POST`, `PUT`, `PATCH` or `DELETE`."""
        return content(checked(await self._send(method, url, idempotency_key, json=json)))

    async def find(self, idempotency_key: str, params: Mapping[str, Any]) -> Applied | NotApplied | Unsure:
        if self.replays:
            return Applied(await self.send(**params, idempotency_key=idempotency_key))
        if self.status_url is None:
            return Unsure()
        answer = await self._send("GET", self.status_url.format(key=idempotency_key))
        if answer.status_code == 404:
            return NotApplied()
        return Applied(content(answer)) if answer.status_code == 200 else Unsure()

    async def _send(
        self, method: str, url: str, key: str | None = None, *, json: object = None, params: Any = None
    ) -> "HttpResponse":
        """Send a request to the address that was checked, so that a second DNS answer cannot redirect it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not {host, parts.netloc} & self.allow:
            raise PermissionDenied(f"{parts.scheme}://{parts.netloc} is not among the hosts that are allowed")
        try:
            target = await pin(url, private=self.private)
        except OSError as error:
            raise not_applied(TransientError(f"{host}: {error}")) from error
        headers = {"Accept-Encoding": "gzip", **self.headers, **target.headers}
        headers |= {"Idempotency-Key": key} if key else {}
        try:
            async with (
                httpx.AsyncClient(timeout=self.timeout, trust_env=False) as client,
                client.stream(
                    method, target.url, headers=headers, extensions=target.extensions, json=json, params=params
                ) as response,
            ):
                return await HttpResponse.read(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise not_applied(TransientError(f"{host}: {error}")) from error
        except httpx.HTTPError as error:
            raise TransientError(f"{host}: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response to a request, with no more than the first RESPONSE_BYTES of its body."""

    status_code: int
    reason: str
    content_type: str
    encoding: str
    body: bytes
    complete: bool

    @classmethod
    async def read(cls, response: httpx.Response) -> "HttpResponse":
        """Read and decompress a body as far as the limit; a body in an unknown encoding is not read."""
        encoding = response.headers.get("content-encoding", "identity").lower()
        inflate = zlib.decompressobj(GZIP_OR_ZLIB) if encoding in ("gzip", "deflate") else None
        body, complete = b"", inflate is not None or encoding == "identity"
        try:
            async for chunk in response.aiter_raw():
                if not complete:
                    break
                body += chunk if inflate is None else inflate.decompress(chunk, RESPONSE_BYTES + 1 - len(body))
                if len(body) > RESPONSE_BYTES:
                    body, complete = body[:RESPONSE_BYTES], False
                    break
        except zlib.error as error:
            raise TransientError(f"the body is not {encoding}: {error}") from error
        content_type, charset = response.headers.get("content-type", ""), response.charset_encoding or "utf-8"
        return cls(response.status_code, response.reason_phrase, content_type, charset, body, complete)

    @property
    def text(self) -> str:
        try:
            return self.body.decode(self.encoding, "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


def checked(answer: HttpResponse) -> HttpResponse:
    """Return a successful response, else raise its error class. After a server error the outcome is unknown."""
    text = f"{answer.status_code} {answer.reason}"
    match answer.status_code:
        case 401:
            raise not_applied(AuthError(text))
        case 403:
            raise PermissionDenied(text)
        case 429:
            raise not_applied(TransientError(text))
        case code if code >= 500 or code == 408:
            raise TransientError(text)
        case code if code >= 300:
            raise LogicError(f"{text}: {answer.text[:200]}")
    return answer


def content(answer: HttpResponse) -> object:
    """JSON or text; None if the body is longer than the limit."""
    if not answer.complete:
        return None
    return json.loads(answer.body) if "json" in answer.content_type else answer.text


class Sql:
    """Tables by a URL: `Sql("postgresql://…", insert=["orders"])`.

    `query` can only read. `insert` adds a row to one of the tables named by `insert`, by default to any; the table has
    a unique column for the key. A role with the rights of a superuser and Rota's own database are refused.
    """

    def __init__(self, url: str, key: str = "idempotency_key", *, insert: Collection[str] | None = None) -> None:
        self.database, self.key = OutsideDatabase(url), key
        self.tables = None if insert is None else frozenset(insert)

    @read
    async def query(self, statement: str, params: Mapping[str, object] | None = None) -> list[dict[str, object]]:
        return await self.database.fetch(statement, params or {})

    @mutation(reconcile="find")
    async def insert(self, table: str, row: Mapping[str, object], *, idempotency_key: str) -> dict[str, object]:
        if self.tables is not None and table not in self.tables:
            allowed = ", ".join(sorted(self.tables)) or "none"
            raise PermissionDenied(f"table {table} is not among those that the connector may insert into: {allowed}")
        await self.database.insert(table, {**row, self.key: idempotency_key})
        return {self.key: idempotency_key}

    async def find(self, idempotency_key: str, params: Mapping[str, Any]) -> Applied | NotApplied:
        row = await self.database.find(params["table"], self.key, idempotency_key, list(params["row"]))
        return NotApplied() if row is None else Applied({self.key: idempotency_key})


class Files:
    """CSV files below a folder. Each line ends with its idempotency key."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()

    @read
    def read_csv(self, path: str) -> list[list[str]]:
        with self._open(path, os.O_RDONLY) as file:
            return [row for row in csv.reader(io.StringIO(file.read().decode())) if row]

    @mutation(reconcile="find")
    def append_csv(self, path: str, row: Sequence[object], *, idempotency_key: str) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([*row, idempotency_key])
        with self._open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a process died while it wrote a line
            file.write((("\n" if torn else "") + line.getvalue()).encode())
            file.flush()
            os.fsync(file.fileno())

    def find(self, idempotency_key: str, params: Mapping[str, Any]) -> Applied | NotApplied:
        try:
            rows = self.read_csv(params["path"])
        except FileNotFoundError:
            return NotApplied()
        return Applied() if any(row[-1] == idempotency_key for row in rows) else NotApplied()

    def _open(self, path: str, flags: int) -> BinaryIO:
        place = (self.root / path).resolve()
        if not place.is_relative_to(self.root):
            raise LogicError(f"{path} is not below {self.root}")
        return os.fdopen(os.open(place, flags | os.O_NOFOLLOW, 0o600), "r+b" if flags & os.O_RDWR else "rb")
