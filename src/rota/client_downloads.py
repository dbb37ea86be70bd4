"""Downloads by `rota.client`, in parts: they go on where a connection broke, and compare a checksum."""

import base64
import binascii
import contextlib
import hashlib
import random
import re
from typing import BinaryIO

import httpx

from rota.client import AsyncClient, Client, Damaged, parse_answer, quoted, request_of
from rota.core.clock import blocking_sleep, real_sleep

PART_BYTES = 1 << 20
DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")


def download(client: Client, artifact_id: str, file: BinaryIO) -> int:
    """See `Client.download_artifact`."""
    state = Download(file, client.tries)
    while not state.complete:
        request = state.request(request_of(client.http, "GET", path_of(artifact_id), None, {}, None))
        try:
            answer = client.http.send(request, stream=True)
            with contextlib.closing(answer):
                if not state.begin(answer):
                    answer.read()
                    parse_answer(request, answer)
                for part in answer.iter_raw(PART_BYTES):
                    state.add(part)
            state.end()
        except httpx.TransportError as error:
            if (delay := state.retry_delay()) is None:
                parse_answer(request, error)
            blocking_sleep(delay or 0.0)
    return state.size


async def download_async(client: AsyncClient, artifact_id: str, file: BinaryIO) -> int:
    """See `AsyncClient.download_artifact`."""
    state = Download(file, client.tries)
    while not state.complete:
        request = state.request(request_of(client.http, "GET", path_of(artifact_id), None, {}, None))
        try:
            answer = await client.http.send(request, stream=True)
            async with contextlib.aclosing(answer):
                if not state.begin(answer):
                    await answer.aread()
                    parse_answer(request, answer)
                async for part in answer.aiter_raw(PART_BYTES):
                    state.add(part)
            state.end()
        except httpx.TransportError as error:
            if (delay := state.retry_delay()) is None:
                parse_answer(request, error)
            await real_sleep(delay or 0.0)
    return state.size


def path_of(artifact_id: str) -> str:
    return f"/artifacts/{quoted(artifact_id)}/$content"


class Download:
    """A content that is written to a file in parts, by one request or several."""

    def __init__(self, file: BinaryIO, tries: int) -> None:
        self.file, self.tries = file, tries
        self.size, self.complete = 0, False
        self.failures = 0  # in a row
        self.etag = ""
        self.digest, self.expected = hashlib.sha256(), b""

    def request(self, request: httpx.Request) -> httpx.Request:
        """Return the request for what is missing."""
        request.headers["accept-encoding"] = "identity"
        if self.size:
            request.headers["range"] = f"bytes={self.size}-"
            request.headers["if-range"] = self.etag
        return request

    def begin(self, answer: httpx.Response) -> bool:
        """Return False for an answer that is an error. Raises Damaged if the content changed and the file cannot be
        written anew."""
        if not answer.is_success:
            return False
        if self.size and answer.status_code != 206:
            if not self.file.seekable():
                raise Damaged("the content changed during the download")
            self.file.seek(-self.size, 1)
            self.file.truncate()
            self.size, self.digest = 0, hashlib.sha256()
        self.etag = answer.headers.get("etag", "")
        if match := DIGEST.search(answer.headers.get("repr-digest", "")):
            try:
                self.expected = base64.b64decode(match[1], validate=True)
            except binascii.Error:
                self.expected = b""
        return True

    def add(self, part: bytes) -> None:
        self.file.write(part)
        self.digest.update(part)
        self.size += len(part)
        self.failures = 0

    def end(self) -> None:
        """Mark the download as complete. Raises Damaged if it differs from its checksum."""
        if self.expected and self.expected != self.digest.digest():
            raise Damaged("the content differs from the checksum of the server; download it again")
        self.complete = True

    def retry_delay(self) -> float | None:
        """Return the seconds to wait after a broken connection; None if it broke too often in a row."""
        self.failures += 1
        if self.failures >= self.tries:
            return None
        return float(min(0.1 * 2**self.failures, 5.0) * random.uniform(0.5, 1))
