"""Runs commands as Jobs of Kubernetes, through its HTTP API."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import AuthError, LogicError, PermissionDenied, TransientError, WorkError
from rota.core.policy import Failure, FailureClass
from rota.core.process_groups import Tail, last_line
from rota.engine.runner import ChildCrashed, RunContext, WorkFailed
from rota.kinds.tasks.executors.container_options import Container
from rota.kinds.tasks.executors.kubernetes_access import find_access
from rota.kinds.tasks.executors.kubernetes_job import labels_of, make_job, make_secret, name_of
from rota.kinds.tasks.executors.port import STOP_SECONDS, uninterrupted
from rota.user_code import processes

POLL_SECONDS = 1.0  # between two looks at a pod
AWAY_SECONDS = 60.0  # that the API may be out of reach while a pod runs
REQUEST_SECONDS = 15.0
LOG_SECONDS = 10.0  # after the end of a pod: until its log must have come
OUTPUT_CHARACTERS = 64 * 1024  # kept in the outcome; the log has more
HOPELESS = ("InvalidImageName", "CreateContainerConfigError")  # reasons for which a pod waits in vain
LOST = ("NodeLost", "Evicted", "Preempting", "NodeShutdown", "Shutdown", "Terminated", "UnexpectedAdmissionError")

Record = Mapping[str, Any]


class Kubernetes:
    """The API server of a cluster."""

    def __init__(self, config: str) -> None:
        self.access = find_access(config)
        self.label = f"Kubernetes at {self.access.server}"
        self._http = httpx.AsyncClient(verify=self.access.tls, timeout=REQUEST_SECONDS, trust_env=False)

    async def run_command(self, ctx: RunContext, container: Container, command: str, stdin: bytes) -> dict[str, Any]:
        """Run a command as a Job and return its exit code and the tail of its output. Canceled, it deletes the Job and
        waits until its pod is gone. Raises TransientError for a lost pod or cluster, WorkFailed for another exit code
        than 0, LogicError, AuthError or PermissionDenied for what the API refuses."""
        if ctx.attempt > 1 or ctx.job.rescues or ctx.job.crashes:
            await self.delete_jobs(ctx, f"rota/job={labels_of(ctx)['rota/job']}")
        variables = processes.variables_of_container(ctx, container.env)
        timeout = None if ctx.info.timeout is None else (ctx.info.timeout + ctx.cancel_grace).total_seconds()
        try:
            await self.create("v1", "secrets", make_secret(ctx, variables, stdin.decode("utf-8", "backslashreplace")))
            await self.create("batch/v1", "jobs", make_job(ctx, container, command, variables, timeout))
            ctx.log.line("system", f"created Job {self.access.namespace}/{name_of(ctx)} in {self.label}")
            return await self.follow(ctx)
        finally:
            await uninterrupted(self.clean_up(ctx))

    async def follow(self, ctx: RunContext) -> dict[str, Any]:
        """Follow the pod of a run until it has ended."""
        tail, waiting, reading = Tail(OUTPUT_CHARACTERS), "", None
        seen_at, name = stopwatch(), ""
        try:
            while True:
                try:
                    pods = await self.pods(ctx)
                    seen_at = stopwatch()
                except TransientError:
                    if stopwatch() - seen_at > AWAY_SECONDS:
                        raise
                    pods = None
                if pods:
                    pod, name = pods[0], pods[0]["metadata"]["name"]
                    state = state_of(pod)
                    if reading is None and ("running" in state or "terminated" in state):
                        node = pod["spec"].get("nodeName", "?")
                        ctx.log.line("system", f"pod {name} started on node {node}")
                        reading = asyncio.ensure_future(self.read_log(ctx, name, tail))
                    if "terminated" in state or pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
                        if reading is not None:
                            await asyncio.wait([reading], timeout=LOG_SECONDS)
                        return self.outcome(pod, state, tail.text())
                    waiting = self.report_wait(ctx, name, state, waiting)
                elif pods is not None and name:
                    raise TransientError(f"pod {name} of {self.label} was lost while it ran: it was deleted")
                elif pods is not None:
                    await self.check_job(ctx)
                await real_sleep(POLL_SECONDS)
        finally:
            if reading is not None:
                reading.cancel()

    def report_wait(self, ctx: RunContext, pod: str, state: Record, before: str) -> str:
        """Log why a pod waits, once per reason. Raises LogicError if it waits in vain."""
        reason = state.get("waiting", {}).get("reason", "")
        text = f"pod {pod} waits: {reason} {state.get('waiting', {}).get('message', '')}".strip()
        if reason in HOPELESS:
            raise LogicError(text)
        if reason and reason != before:
            ctx.log.line("system", text)
        return reason or before

    def outcome(self, pod: Record, state: Record, output: str) -> dict[str, Any]:
        """Return the outcome of a pod that has ended; raises as `run_command` does."""
        name, status, ended = pod["metadata"]["name"], pod["status"], state.get("terminated", {})
        reason = status.get("reason") or ended.get("reason", "")
        disrupted = [entry for entry in status.get("conditions", []) if entry["type"] == "DisruptionTarget"]
        if status.get("phase") == "Failed" and (
            reason in LOST or any(entry["status"] == "True" for entry in disrupted)
        ):
            node = pod["spec"].get("nodeName", "?")
            why = reason or disrupted[0].get("reason", "")
            raise TransientError(f"pod {name} of {self.label} was lost on node {node}: {why}")
        if not ended:
            raise LogicError(f"pod {name} ended before its container: {reason} {status.get('message', '')}".strip())
        if reason == "OOMKilled" or ended["exitCode"] == 137:
            raise ChildCrashed(f"the container of pod {name} was killed ({reason})")
        outcome = {"exit_code": ended["exitCode"], "stdout": output, "stderr": ""}
        if ended["exitCode"]:
            last = last_line(output)
            text = f"command in pod {name} exited with code {ended['exitCode']}" + (f": {last}" if last else "")
            raise WorkFailed(Failure(FailureClass.LOGIC, "CommandFailed", text), outcome)
        return outcome

    async def check_job(self, ctx: RunContext) -> None:
        """Raises the failure of a Job without a pod, such as one that a quota refuses, or that was deleted."""
        job = await self.request("GET", f"{self.path('batch/v1', 'jobs')}/{name_of(ctx)}")
        for condition in job.get("status", {}).get("conditions", []):
            if condition["type"] == "Failed" and condition["status"] == "True":
                raise TransientError(f"Job {name_of(ctx)} of {self.label} failed: {condition.get('message', '')}")

    async def read_log(self, ctx: RunContext, pod: str, tail: Tail) -> None:
        """Copy the log of a pod's first container to the run's log while it runs."""
        url = f"{self.access.server}{self.path('v1', 'pods')}/{pod}/log"
        with suppress(httpx.HTTPError):
            options: dict[str, Any] = {"params": {"follow": "true"}, "timeout": None}
            async with self._http.stream("GET", url, headers=self.access.headers(), **options) as answer:
                if answer.is_success:
                    async for text in answer.aiter_text():
                        ctx.log.write("stdout", text)
                        tail.add(text)

    async def clean_up(self, ctx: RunContext) -> None:
        """Delete the Job and the Secret of a run, and wait until its pod is gone."""
        try:
            await self.delete_jobs(ctx, f"rota/run={name_of(ctx)}")
            await self.delete(f"{self.path('v1', 'secrets')}/{name_of(ctx)}")
        except WorkError as error:
            ctx.log.line("system", f"Job {name_of(ctx)} may be left in {self.label}: {error.message}")

    async def delete_jobs(self, ctx: RunContext, selector: str) -> None:
        """Delete Jobs with their pods, which get SIGTERM and have the grace, and wait until the pods are gone."""
        answer = await self.request("GET", self.path("batch/v1", "jobs"), params={"labelSelector": selector})
        for job in answer["items"]:
            await self.delete(f"{self.path('batch/v1', 'jobs')}/{job['metadata']['name']}")
        end = stopwatch() + ctx.cancel_grace.total_seconds() + STOP_SECONDS
        while answer["items"] and (pods := await self.running(selector)):
            if stopwatch() > end:
                names = ", ".join(pods)
                ctx.log.line("system", f"{self.label} has not confirmed that {names} stopped")
                return
            await real_sleep(POLL_SECONDS / 2)

    async def running(self, selector: str) -> list[str]:
        answer = await self.request("GET", self.path("v1", "pods"), params={"labelSelector": selector})
        ended = ("Succeeded", "Failed")
        return [pod["metadata"]["name"] for pod in answer["items"] if pod.get("status", {}).get("phase") not in ended]

    async def pods(self, ctx: RunContext) -> list[Record]:
        selector = f"rota/run={name_of(ctx)}"
        answer = await self.request("GET", self.path("v1", "pods"), params={"labelSelector": selector})
        return list(answer["items"])

    async def create(self, version: str, kind: str, manifest: Record) -> None:
        await self.request("POST", self.path(version, kind), json=manifest)

    async def delete(self, path: str) -> None:
        await self.request("DELETE", path, params={"propagationPolicy": "Background"}, missing_is_fine=True)

    def path(self, version: str, kind: str) -> str:
        prefix = "/api/v1" if version == "v1" else f"/apis/{version}"
        return f"{prefix}/namespaces/{self.access.namespace}/{kind}"

    async def request(self, method: str, path: str, *, missing_is_fine: bool = False, **options: Any) -> Any:
        """Send a request and return the answer's JSON. Raises the error that fits a refusal, with the address."""
        url = f"{self.access.server}{path}"
        try:
            answer = await self._http.request(method, url, headers=self.access.headers(), **options)
        except (httpx.HTTPError, OSError) as error:
            raise TransientError(f"{self.label} cannot be reached: {str(error) or type(error).__name__}") from error
        if answer.is_success or (missing_is_fine and answer.status_code == 404):
            return answer.json()
        raise self.refusal(answer)

    def refusal(self, answer: httpx.Response) -> WorkError:
        try:
            message = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            message = answer.text[:500]
        text = f"{self.label} refused ({answer.status_code}): {message}"
        match answer.status_code:
            case 401:
                return AuthError(f"{text}; renew the credentials of ROTA_KUBERNETES_CONFIG or of the service account")
            case 403:
                return PermissionDenied(
                    f"{text}; allow it to create, list and delete jobs and secrets, and to read pods"
                )
            case 400 | 404 | 409 | 422:
                return LogicError(text)
            case _:
                return TransientError(text)

    async def close(self) -> None:
        await self._http.aclose()


def state_of(pod: Record) -> Record:
    """Return the state of a pod's first container, as the API says it."""
    first = pod["spec"]["containers"][0]["name"]
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((entry.get("state", {}) for entry in statuses if entry["name"] == first), {})
