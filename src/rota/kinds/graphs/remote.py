"""Graphs whose code lives in another service: asked for through its internal endpoint, once per job and try.

A worker that dies leaves the run over there going; whoever takes the job up asks with the same key, waits for that run
and gets its outcome. So an answer that did not come is never a failure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import structlog

from rota.billing import store as billing_store
from rota.core.clock import real_sleep
from rota.core.errors import AuthError
from rota.core.policy import Failure, FailureClass
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import artifacts
from rota.engine.runner import Canceled, RunContext, Skipped, WorkFailed, current_log
from rota.kinds.graphs.execution import CLASSES, Kept, Order, refusal
from rota.kinds.graphs.port import Code

AGAIN = 1.0  # seconds until an endpoint is asked again
PATIENCE = httpx.Timeout(30, read=None)  # a graph may take its time

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
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, transport=self.transport)

    async def learn(self) -> bool:
        """Ask which graphs there are, until somebody answers; True if there are others than before."""
        async with self.client() as client:
            answer = await self.ask(client, "GET", "/api/internal/graphs", {})
        if answer.status_code != 200:
            log.error("the graph endpoint does not tell its graphs", url=self.url, status=answer.status_code)
            return False
        before, self.graphs = self.graphs, {one["id"] for one in answer.json()["items"]}
        return self.graphs != before

    async def run(self, ctx: RunContext, order: Order, tell: Callable[[dict[str, Any]], None]) -> Kept:
        path = f"/api/internal/graphs/{quote(order.graph_id)}:run"
        body = {"grant_id": order.grant_id, "input": order.input, "run_id": order.run_id}
        key = f"{ctx.job.id}:{ctx.job.tries}"  # a failure that counts is tried anew, a worker that died is not one
        headers = {"idempotency-key": key, "traceparent": order.trace}
        current_log.set(None)  # what our own client says of its requests is not the graph's
        async with self.client() as client:
            answer = await self.ask(client, "POST", path, {"json": body, "headers": headers})
        if answer.status_code != 200:
            raise refused(answer)
        told = answer.json()
        content, usage = await retry_until_available(
            lambda: ctx.engine.db.read(result_of, order.org_id, told["run_id"])
        )
        tell(usage)
        if told["ok"] and content is not None:
            return content
        raise failed(told.get("error_code") or Code.INTERNAL)

    async def ask(self, client: httpx.AsyncClient, method: str, path: str, what: dict[str, Any]) -> httpx.Response:
        """Ask until there is an answer: a run that is still going (409) and a service that is away are waited for."""
        while True:
            try:
                answer = await client.request(method, path, **what)
                if answer.status_code != 409 and answer.status_code < 500:
                    return answer
                trouble = f"status {answer.status_code}"
            except httpx.TransportError as error:
                trouble = repr(error)
            log.info("the graph endpoint has no answer yet; asking again", url=self.url, trouble=trouble)
            await real_sleep(AGAIN)


def result_of(tx: Tx, org_id: str, run_id: str) -> tuple[Kept | None, dict[str, Any]]:
    """What a run over there left here: its content and what it used."""
    found, _ = artifacts.list_all(tx, org_id, run_id=run_id, label="content", limit=1)
    kept = Kept(str(artifacts.get(tx, org_id, found[0]["id"])["data"]), found[0]["id"]) if found else None
    return kept, billing_store.used_by(tx, org_id, run_id)


def refused(answer: httpx.Response) -> Exception:
    """It did not run."""
    try:
        code, detail = str(answer.json()["code"]), str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "internal", f"the graph endpoint answered with status {answer.status_code}"
    match answer.status_code:
        case 401:
            return AuthError(f"the graph endpoint refuses this worker: {detail}")
        case 403:
            return Skipped(code) if code.startswith("grant_") else Skipped("budget", refusal(code, detail))
        case 404:
            return failed(Code.NOT_FOUND, detail)
        case _:
            return WorkFailed(Failure(FailureClass.INTERNAL, "GraphEndpoint", detail, code=code))


def failed(code: str, detail: str = "") -> Exception:
    """It ran."""
    text = detail or f"the graph failed ({code}); the log of its run says more"
    if code == Code.ABORTED:
        return Canceled("aborted")
    kind = CLASSES[Code(code)] if code in Code._value2member_map_ else FailureClass.INTERNAL
    if code in FailureClass._value2member_map_:  # it said itself what is to follow
        kind = FailureClass(code)
    return WorkFailed(Failure(kind, "GraphFailed", text, code=code))
