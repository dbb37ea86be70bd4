"""Client of the internal endpoint of another service that has the graphs; one idempotency key per job and try.

If a worker dies, the run in the other service goes on; the next worker of the job sends the same key, waits for that
run and gets its outcome. So a missing answer is never a failure, but retried.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx
import structlog

from rota.billing import store as billing_store
from rota.core.clock import real_sleep
from rota.core.errors import AuthError
from rota.core.policy import Failure, FailureClass
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.retry import retry_until_available
from rota.engine import artifact_contents, artifacts
from rota.engine.authority import refusal
from rota.engine.runner import Canceled, RunContext, Skipped, WorkFailed, current_log
from rota.kinds.graphs.execution import FAILURE_CLASSES, GraphOrder, GraphResult
from rota.kinds.graphs.port import Code

RETRY_SECONDS = 1.0
HTTP_TIMEOUT = httpx.Timeout(30, read=None)  # a graph may run for any time

log = structlog.get_logger("rota.graphs")


@dataclass(slots=True)
class Remote:
    """The endpoint of a service that has the graphs. `transport` is for tests."""

    url: str
    token: str
    graphs: set[str] = field(default_factory=set)
    transport: httpx.AsyncBaseTransport | None = None

    def client(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=HTTP_TIMEOUT, transport=self.transport)

    async def learn(self) -> bool:
        """Read the list of graphs, with retries until there is an answer; True if it changed."""
        async with self.client() as client:
            response = await self.request(client, "GET", "/api/internal/graphs", {})
        if response.status_code != 200:
            log.error("the graph endpoint did not list its graphs", url=self.url, status=response.status_code)
            return False
        before, self.graphs = self.graphs, {graph["id"] for graph in response.json()["items"]}
        return self.graphs != before

    async def run(
        self, ctx: RunContext, order: GraphOrder, on_usage: Callable[[dict[str, object]], None]
    ) -> GraphResult:
        """Run a graph in the other service. Raises as `Execution.run` does, AuthError for a wrong token."""
        path = f"/api/internal/graphs/{quote(order.graph_id)}:run"
        body = {"grant_id": order.grant_id, "input": order.input, "run_id": order.run_id}
        key = f"{ctx.job.id}:{ctx.job.tries}"  # a retry is a new run, the takeover from a dead worker is not
        headers = {"idempotency-key": key, "traceparent": order.trace}
        current_log.set(None)  # httpx logs of these requests do not belong to the run
        async with self.client() as client:
            response = await self.request(client, "POST", path, {"json": body, "headers": headers})
        if response.status_code != 200:
            raise refusal_of(response)
        ended = response.json()
        artifact_id, usage = await retry_until_available(
            lambda: ctx.engine.db.read(result_of, order.org_id, ended["run_id"])
        )
        on_usage(usage)
        if ended["ok"] and artifact_id is not None:
            artifact = await retry_until_available(
                lambda: artifact_contents.find(ctx.engine, order.org_id, artifact_id)
            )
            return GraphResult(str(artifact["data"]), artifact_id)
        raise failure_of(ended.get("error_code") or Code.INTERNAL)

    async def request(self, client: httpx.AsyncClient, method: str, path: str, options: Record) -> httpx.Response:
        """Send a request until there is an answer; retried while the run goes on (409) or the service is down."""
        while True:
            try:
                response = await client.request(method, path, **options)
                if response.status_code != 409 and response.status_code < 500:
                    return response
                reason = f"status {response.status_code}"
            except httpx.TransportError as error:
                reason = repr(error)
            log.info("no answer of the graph endpoint yet; retrying", url=self.url, reason=reason)
            await real_sleep(RETRY_SECONDS)


def result_of(tx: Tx, org_id: str, run_id: str) -> tuple[str | None, dict[str, object]]:
    """Return the artifact with the content, and the usage of a run, which the other service wrote to this database."""
    items, _ = artifacts.list_all(tx, org_id, run_id=run_id, label="content", limit=1)
    return items[0]["id"] if items else None, billing_store.used_by(tx, org_id, run_id)


def refusal_of(response: httpx.Response) -> Exception:
    """Return the exception of a status that means that the graph did not run."""
    try:
        code, detail = str(response.json()["code"]), str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "internal", f"the graph endpoint answered with status {response.status_code}"
    match response.status_code:
        case 401:
            return AuthError(f"the graph endpoint refuses this worker: {detail}")
        case 403:
            return Skipped(code) if code.startswith("grant_") else Skipped("budget", refusal(code, detail))
        case 404:
            return failure_of(Code.NOT_FOUND, detail)
        case _:
            return WorkFailed(Failure(FailureClass.INTERNAL, "GraphEndpoint", detail, code=code))


def failure_of(code: str, detail: str = "") -> Exception:
    """Return the exception of a graph that ran and failed with this code."""
    text = detail or f"the graph failed ({code}); see the log of its run"
    if code == Code.ABORTED:
        return Canceled("aborted")
    failure_class = FAILURE_CLASSES[Code(code)] if code in Code._value2member_map_ else FailureClass.INTERNAL
    if code in FailureClass._value2member_map_:
        failure_class = FailureClass(code)
    return WorkFailed(Failure(failure_class, "GraphFailed", text, code=code))
