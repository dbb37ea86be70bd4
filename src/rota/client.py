"""Client of the API: `Client` blocks, `AsyncClient` is awaited; both have the same methods.

    with Client("http://127.0.0.1:8420", key) as rota:
        job_id = rota.run_schedule("nightly")
        print(rota.wait(job_id)["status"])

Methods exist for everyday use. `send` and `items` call any route of `rota.client_routes`, typed:

        grant = rota.send(routes.post_grants({"scopes": ["task:report"]}))
        names = [queue["name"] for queue in rota.items(routes.get_queues())]

Idempotent calls are retried with backoff when the server or the network fails: reads, PUT, and every POST, because
each carries an `Idempotency-Key`. Refusals are raised as one of the errors below, with the server's `code`.
"""

import os
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

import httpx

from rota.client_types import FieldError as FieldError
from rota.client_types import Job as Job
from rota.client_types import Json as Json
from rota.client_types import LogLine as LogLine
from rota.client_types import Page as Page
from rota.client_types import Problem as Problem
from rota.client_types import Run as Run
from rota.client_types import Schedule as Schedule
from rota.client_types import Status as Status
from rota.core.clock import blocking_sleep, real_sleep, stopwatch
from rota.core.ids import new_id

if TYPE_CHECKING:
    from rota.client_routes import PageOf, Request

Answer = TypeVar("Answer")
Item = TypeVar("Item")
QueryValue = str | int | float | bool | Sequence[str] | None  # None is not sent
DEFAULT_TRIES = 4
MAX_RETRY_AFTER_SECONDS = 30.0  # a longer `Retry-After` is not waited for
RETRIED_STATUSES = (429, 502, 503, 504)
RETRIED_METHODS = ("GET", "HEAD", "PUT", "POST")  # POST has an idempotency key
OPEN_STATUSES = ("pending", "running")
JOB_POLL_SECONDS = 0.5

quoted = partial(quote, safe="")


class ClientError(Exception):
    """Base class of all errors of this client."""


class Damaged(ClientError):
    """A download differs from the checksum of the server."""


class Unreachable(ClientError):
    """No response: the server or the network is down."""


class TimedOut(ClientError):
    """No response within the timeout, or a job that has not ended within the seconds that `wait` was called with."""


class ApiError(ClientError):
    """The server refused the request. `code` is stable, `problem` is the whole problem document."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.get("detail", f"HTTP {status}"))
        self.status, self.problem, self.code = status, problem, problem.get("code", "unknown")


class BadRequest(ApiError):
    """400, 413, 415, 422: the request is invalid; `problem["errors"]` names the fields."""


class NotAuthenticated(ApiError):
    """401: no key, or one that is unknown, expired or revoked."""


class Forbidden(ApiError):
    """403: the key lacks the role or scope."""


class NotFound(ApiError):
    """404: it does not exist, or belongs to another org."""


class Conflict(ApiError):
    """409, 412: its state does not allow this, it already exists, or it has changed since it was read."""


class TooManyRequests(ApiError):
    """429: rate limit; retry later."""


class ServerError(ApiError):
    """5xx: the server failed or is unavailable."""


ERRORS_BY_STATUS: dict[int, type[ApiError]] = {
    **dict.fromkeys((400, 413, 415, 422), BadRequest),
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    **dict.fromkeys((409, 412), Conflict),
    429: TooManyRequests,
}


class Client:
    def __init__(
        self,
        server: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 60.0,
        tries: int = DEFAULT_TRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to a server by its URL and an API key, by default those of ROTA_SERVER and ROTA_KEY."""
        self.tries = tries
        self.http = httpx.Client(**http_options(server, key, timeout), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def call(
        self, method: str, path: str, body: object = None, *, if_match: int | None = None, **query: QueryValue
    ) -> Any:
        """Call a route below /api/v1; return its JSON or raise one of the errors of this module. `if_match` is the
        revision that was read: raises Conflict if a newer one exists."""
        request = request_of(self.http, method, path, body, query, if_match)
        for left in reversed(range(self.tries)):
            answer: httpx.Response | httpx.TransportError
            try:
                answer = self.http.send(request)
            except httpx.TransportError as error:
                answer = error
            delay = retry_delay(request, answer, self.tries - left) if left else None
            if delay is None:
                return parse_answer(request, answer)
            blocking_sleep(delay)
        raise AssertionError("unreachable")

    def pages(self, path: str, **query: QueryValue) -> Iterator[Any]:
        """Iterate over all items of a list; fetches page by page."""
        cursor = None
        while True:
            page: Page = self.call("GET", path, None, if_match=None, **{**query, "cursor": cursor})
            yield from page["items"]
            if (cursor := page["next_cursor"]) is None:
                return

    def send(self, request: "Request[Answer]", *, if_match: int | None = None) -> Answer:
        """Send a request of `rota.client_routes`; otherwise like `call`."""
        return self.call(request.method, request.path, request.body, if_match=if_match, **request.query)

    def items(self, request: "Request[PageOf[Item]]") -> Iterator[Item]:
        """Iterate over all items of a route that returns pages."""
        return self.pages(request.path, **request.query)

    def create_schedule(self, **fields: object) -> Schedule:
        return self.call("POST", "/schedules", fields)

    def schedule(self, key: str) -> Schedule:
        return self.call("GET", f"/schedules/{quoted(key)}")

    def schedules(self, **filters: QueryValue) -> Iterator[Schedule]:
        return self.pages("/schedules", **filters)

    def edit_schedule(self, key: str, *, if_match: int | None = None, **fields: object) -> Schedule:
        return self.call("PATCH", f"/schedules/{quoted(key)}", fields, if_match=if_match)

    def delete_schedule(self, key: str) -> None:
        self.call("DELETE", f"/schedules/{quoted(key)}")

    def run_schedule(self, key: str, **fields: object) -> str:
        """Run a schedule now; return the job's id. Fields: input (default: the schedule's), overlap."""
        return str(self.call("POST", f"/schedules/{quoted(key)}/$run", fields)["job_id"])

    def pause_schedule(self, key: str, reason: str = "", until: str | None = None) -> Schedule:
        return self.call("POST", f"/schedules/{quoted(key)}/$pause", {"reason": reason, "until": until})

    def resume_schedule(self, key: str, gap: str = "skip") -> Schedule:
        return self.call("POST", f"/schedules/{quoted(key)}/$resume", {"gap": gap})

    def add_job(self, target: str, **fields: object) -> str:
        """Enqueue a task, or with `kind` a graph, a pipeline or a host job; return the job's id. Fields: input, queue,
        priority, run_at, job_key, key_mode, after, when."""
        return str(self.call("POST", "/jobs", {"target": target, **fields})["job_id"])

    def job(self, job_id: str) -> Job:
        return self.call("GET", f"/jobs/{quoted(job_id)}")

    def run(self, run_id: str) -> Run:
        return self.call("GET", f"/runs/{quoted(run_id)}")

    def download_artifact(self, artifact_id: str, file: BinaryIO) -> int:
        """Write the content of an artifact, or of a run, to a file in parts, and return its size. Goes on where a
        connection broke. Raises Damaged if the content differs from its checksum."""
        from rota.client_downloads import download

        return download(self, artifact_id, file)

    def runs(self, **filters: QueryValue) -> Iterator[Run]:
        return self.pages("/runs", **filters)

    def logs(self, run_id: str, after: int = 0) -> Iterator[LogLine]:
        while True:
            page: Page = self.call("GET", f"/runs/{quoted(run_id)}/logs", after=after)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            after = int(page["next_cursor"])

    def cancel(self, job_or_run_id: str) -> None:
        self.call("POST", f"/runs/{quoted(job_or_run_id)}/$cancel")

    def retry(self, run_id: str) -> str:
        return str(self.call("POST", f"/runs/{quoted(run_id)}/$retry")["job_id"])

    def wait(self, job_id: str, seconds: float = 3600.0) -> Job:
        """Poll until the job has ended and return it. Raises TimedOut after `seconds`."""
        deadline = stopwatch() + seconds
        while is_open(job := self.job(job_id)):
            check_deadline(job, deadline, seconds)
            blocking_sleep(JOB_POLL_SECONDS)
        return job


class AsyncClient:
    def __init__(
        self,
        server: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 60.0,
        tries: int = DEFAULT_TRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to a server by its URL and an API key, by default those of ROTA_SERVER and ROTA_KEY."""
        self.tries = tries
        self.http = httpx.AsyncClient(**http_options(server, key, timeout), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.http.aclose()

    async def call(
        self, method: str, path: str, body: object = None, *, if_match: int | None = None, **query: QueryValue
    ) -> Any:
        """Call a route below /api/v1; return its JSON or raise one of the errors of this module. `if_match` is the
        revision that was read: raises Conflict if a newer one exists."""
        request = request_of(self.http, method, path, body, query, if_match)
        for left in reversed(range(self.tries)):
            answer: httpx.Response | httpx.TransportError
            try:
                answer = await self.http.send(request)
            except httpx.TransportError as error:
                answer = error
            delay = retry_delay(request, answer, self.tries - left) if left else None
            if delay is None:
                return parse_answer(request, answer)
            await real_sleep(delay)
        raise AssertionError("unreachable")

    async def pages(self, path: str, **query: QueryValue) -> AsyncIterator[Any]:
        """Iterate over all items of a list; fetches page by page."""
        cursor = None
        while True:
            page: Page = await self.call("GET", path, None, if_match=None, **{**query, "cursor": cursor})
            for item in page["items"]:
                yield item
            if (cursor := page["next_cursor"]) is None:
                return

    async def send(self, request: "Request[Answer]", *, if_match: int | None = None) -> Answer:
        """Send a request of `rota.client_routes`; otherwise like `call`."""
        return await self.call(request.method, request.path, request.body, if_match=if_match, **request.query)

    def items(self, request: "Request[PageOf[Item]]") -> AsyncIterator[Item]:
        """Iterate over all items of a route that returns pages."""
        return self.pages(request.path, **request.query)

    async def create_schedule(self, **fields: object) -> Schedule:
        return await self.call("POST", "/schedules", fields)

    async def schedule(self, key: str) -> Schedule:
        return await self.call("GET", f"/schedules/{quoted(key)}")

    def schedules(self, **filters: QueryValue) -> AsyncIterator[Schedule]:
        return self.pages("/schedules", **filters)

    async def edit_schedule(self, key: str, *, if_match: int | None = None, **fields: object) -> Schedule:
        return await self.call("PATCH", f"/schedules/{quoted(key)}", fields, if_match=if_match)

    async def delete_schedule(self, key: str) -> None:
        await self.call("DELETE", f"/schedules/{quoted(key)}")

    async def run_schedule(self, key: str, **fields: object) -> str:
        """Run a schedule now; return the job's id. Fields: input (default: the schedule's), overlap."""
        return str((await self.call("POST", f"/schedules/{quoted(key)}/$run", fields))["job_id"])

    async def pause_schedule(self, key: str, reason: str = "", until: str | None = None) -> Schedule:
        return await self.call("POST", f"/schedules/{quoted(key)}/$pause", {"reason": reason, "until": until})

    async def resume_schedule(self, key: str, gap: str = "skip") -> Schedule:
        return await self.call("POST", f"/schedules/{quoted(key)}/$resume", {"gap": gap})

    async def add_job(self, target: str, **fields: object) -> str:
        """Enqueue a task, or with `kind` a graph, a pipeline or a host job; return the job's id. Fields: input, queue,
        priority, run_at, job_key, key_mode, after, when."""
        return str((await self.call("POST", "/jobs", {"target": target, **fields}))["job_id"])

    async def job(self, job_id: str) -> Job:
        return await self.call("GET", f"/jobs/{quoted(job_id)}")

    async def run(self, run_id: str) -> Run:
        return await self.call("GET", f"/runs/{quoted(run_id)}")

    async def download_artifact(self, artifact_id: str, file: BinaryIO) -> int:
        """Write the content of an artifact, or of a run, to a file in parts, and return its size. Goes on where a
        connection broke. Raises Damaged if the content differs from its checksum."""
        from rota.client_downloads import download_async

        return await download_async(self, artifact_id, file)

    def runs(self, **filters: QueryValue) -> AsyncIterator[Run]:
        return self.pages("/runs", **filters)

    async def logs(self, run_id: str, after: int = 0) -> AsyncIterator[LogLine]:
        while True:
            page: Page = await self.call("GET", f"/runs/{quoted(run_id)}/logs", after=after)
            for line in page["items"]:
                yield line
            if page["next_cursor"] is None:
                return
            after = int(page["next_cursor"])

    async def cancel(self, job_or_run_id: str) -> None:
        await self.call("POST", f"/runs/{quoted(job_or_run_id)}/$cancel")

    async def retry(self, run_id: str) -> str:
        return str((await self.call("POST", f"/runs/{quoted(run_id)}/$retry"))["job_id"])

    async def wait(self, job_id: str, seconds: float = 3600.0) -> Job:
        """Poll until the job has ended and return it. Raises TimedOut after `seconds`."""
        deadline = stopwatch() + seconds
        while is_open(job := await self.job(job_id)):
            check_deadline(job, deadline, seconds)
            await real_sleep(JOB_POLL_SECONDS)
        return job


def is_open(job: Job) -> bool:
    """Whether a job goes on by itself: it is queued, runs, or sleeps or waits within its run."""
    return job["status"] in OPEN_STATUSES or (job["status"] == "paused" and job["waiting"] is not None)


def http_options(server: str | None, key: str | None, timeout: float) -> dict[str, Any]:
    url = server or os.environ.get("ROTA_SERVER") or "http://127.0.0.1:8420"
    api_key = key or os.environ.get("ROTA_KEY") or ""
    return {"base_url": url, "headers": {"authorization": f"Bearer {api_key}"} if api_key else {}, "timeout": timeout}


def request_of(
    http: httpx.Client | httpx.AsyncClient,
    method: str,
    path: str,
    body: object,
    query: Mapping[str, QueryValue],
    if_match: int | None,
) -> httpx.Request:
    headers = {"idempotency-key": new_id()} if method == "POST" else {}
    if if_match is not None:
        headers["if-match"] = f'"{if_match}"'
    params = {name: value for name, value in query.items() if value is not None}
    return http.build_request(method, f"/api/v1{path}", json=body, params=params, headers=headers)


def retry_delay(request: httpx.Request, answer: httpx.Response | httpx.TransportError, tried: int) -> float | None:
    """Return the seconds to wait before the next try; None if the call must not be retried."""
    if request.method not in RETRIED_METHODS:
        return None
    if isinstance(answer, httpx.Response):
        if answer.status_code not in RETRIED_STATUSES:
            return None
        retry_after = answer.headers.get("retry-after", "")
        if retry_after.isdecimal():
            return float(retry_after) if float(retry_after) <= MAX_RETRY_AFTER_SECONDS else None
    return float(min(0.1 * 2**tried, 5.0) * random.uniform(0.5, 1))


def parse_answer(request: httpx.Request, answer: httpx.Response | httpx.TransportError) -> Any:
    """Return the JSON of an answer, the bytes of a download; raise the error that it stands for."""
    if isinstance(answer, httpx.TimeoutException):
        raise TimedOut(f"{request.url.host}:{request.url.port} did not answer in time") from answer
    if isinstance(answer, httpx.TransportError):
        raise Unreachable(f"cannot reach {request.url.host}:{request.url.port}: {answer}") from answer
    if answer.is_success:
        if answer.headers.get("content-disposition", "").startswith("attachment"):
            return answer.content  # the content of an artifact
        return answer.json() if answer.content else None
    error_type = ServerError if answer.status_code >= 500 else ERRORS_BY_STATUS.get(answer.status_code, ApiError)
    raise error_type(answer.status_code, problem_of(answer))


def problem_of(answer: httpx.Response) -> Problem:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "detail" in document:
        return Problem(**document)  # type: ignore[typeddict-item]
    return {"code": "unknown", "detail": f"HTTP {answer.status_code} from {answer.url}: is this a Rota server?"}


def check_deadline(job: Job, deadline: float, seconds: float) -> None:
    if stopwatch() > deadline:
        raise TimedOut(f"job {job['id']} is still {job['status']} after {seconds:g} s")
