"""Spans, heard by the real SDK: one trace from the slot over the queue to what a graph calls."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from rota.core.ids import trace_id_of, traceparent
from rota.engine.scheduler import Scheduler
from rota.engine.tracing import Tracing
from rota.graphs import GraphError, GraphRequest, LlmCaller, TextDelta
from rota.kinds.graphs.manager import GraphManager
from rota.reports import runs as run_reports
from tests.engine.harness import at
from tests.kinds.graphs.harness import Graphs
from tests.spans import Heard, trace_id


@pytest.fixture
def heard(graphs: Graphs) -> Heard:
    found = Heard()
    graphs.harness.engine.tracing = Tracing(found.provider.get_tracer("rota"))
    return found


async def wire(graphs: Graphs, run_id: str) -> dict[str, Any]:
    return await graphs.harness.db.read(run_reports.run, graphs.harness.org_id, run_id)


async def test_a_trace_leads_from_the_slot_through_the_queue_to_the_call_of_a_model(
    graphs: Graphs, heard: Heard
) -> None:
    async def inner(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        with trace.get_tracer("mine", tracer_provider=heard.provider).start_as_current_span("model call"):
            yield TextDelta(caller.trace_id)

    await graphs.schedule("poem", graphs.declare("inner", inner))
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire_elsewhere()
    (job,) = await graphs.harness.queue()
    assert [one.name for one in heard.spans] == ["fire poem"]
    assert job.trace.split("-")[1:3] == [trace_id(heard.spans[0]), f"{heard.spans[0].context.span_id:016x}"]
    graphs.harness.clock.set(at("9:11"))
    await graphs.harness.work()
    target = "python:inner"
    assert heard.chain("model call") == [
        "model call", f"graph {target}", f"run {target}", f"claim {target}", "fire poem",
    ]  # fmt: skip
    (run,) = await graphs.runs()
    assert {trace_id(one) for one in heard.spans} == {run.trace_id, run.outcome["content"]}
    claim, ran = heard.called(f"claim {target}"), heard.called(f"run {target}")
    assert (claim.end_time or 0) - (claim.start_time or 0) == 60 * 10**9  # so long it waited
    assert ran.attributes is not None
    assert (ran.attributes["rota.run_id"], ran.attributes["rota.job_id"]) == (run.id, run.job_id)
    assert ran.status.is_ok or ran.status.is_unset


async def test_all_attempts_of_a_job_are_one_trace_and_errors_tell_their_type_alone(
    graphs: Graphs, heard: Heard
) -> None:
    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("so")
        raise GraphError("rate_limit", "key sk-123 is busy")

    name = graphs.declare("broken", broken)
    await graphs.schedule("poem", name, cron=None, run_at=at("9:10").isoformat(), retry={"max_retries": 1})
    await graphs.harness.run_until(at("10:00"))
    first, second = await graphs.runs()
    await graphs.harness.engine.retry(graphs.harness.org_id, second.id)
    await graphs.harness.work()
    tries = [one for one in heard.spans if one.name == f"run {name}"]
    assert len(tries) == 3
    assert {trace_id(one) for one in heard.spans} == {first.trace_id}
    assert {one.status.description for one in tries} == {"WorkFailed"}
    assert "sk-123" not in "".join(one.to_json() for one in heard.spans)


async def test_a_run_that_is_not_let_begin_says_why(graphs: Graphs, heard: Heard) -> None:
    held = await graphs.grant()
    await graphs.schedule(grant_id=held)
    await graphs.harness.engine.revoke_grant(graphs.harness.org_id, held)
    await graphs.harness.run_until(at("9:10"))
    assert heard.called("run python:poet").status.description == "grant_revoked"
    assert heard.chain("run python:poet")[-1] == "fire job"


async def test_a_request_that_is_traced_is_the_parent_of_what_it_causes(graphs: Graphs, heard: Heard) -> None:
    manager, org_id = GraphManager(graphs.harness.engine, graphs.harness.org_id), graphs.harness.org_id
    asked = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await manager.run("python:poet", {}, await graphs.grant(), "", asked)
    await graphs.harness.work()
    assert heard.chain("graph python:poet")[2:] == ["claim python:poet", "00f067aa0ba902b7"]
    assert graphs.asked[0].caller.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    with heard.provider.get_tracer("mine").start_as_current_span("request"):
        await graphs.harness.engine.enqueue(org_id, "task", "hello", [None])
    await graphs.harness.work()
    assert heard.chain("run hello") == ["run hello", "claim hello", "request"]


async def test_a_job_that_came_without_a_trace_has_its_own(graphs: Graphs, heard: Heard) -> None:
    manager = GraphManager(graphs.harness.engine, graphs.harness.org_id)
    job_id = await manager.run("python:poet", {}, await graphs.grant(), "")
    await graphs.harness.work()
    own = trace_id_of(job_id)
    assert heard.chain("run python:poet")[2:] == [traceparent(own).split("-")[2]]
    (run,) = await graphs.runs()
    assert own == run.trace_id == (await wire(graphs, run.id))["trace_id"] == trace_id(heard.spans[0])


async def test_of_a_slot_that_another_process_fired_nothing_is_told(graphs: Graphs, heard: Heard) -> None:
    await graphs.schedule("poem")
    graphs.harness.clock.set(at("9:10"))
    scheduler = graphs.harness.scheduler
    planned = (await scheduler.poll()).planned
    await Scheduler(graphs.harness.engine).step()
    late = Tracing(heard.provider.get_tracer("rota")).trace_fires(planned)
    assert await scheduler.fire_planned(late, at("9:10")) == set()
    assert [one.name for one in heard.spans] == ["fire poem"]
    await graphs.harness.work()


async def test_without_spans_or_with_an_sdk_that_is_switched_off_everything_runs(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    graphs.harness.engine.tracing = Tracing(TracerProvider().get_tracer("rota"))
    for name in ("one", "two"):
        await graphs.schedule(name)
    await graphs.harness.run_until(at("9:10"))
    assert [run.status for run in await graphs.runs()] == ["success", "success"]
    assert {run.trace_id for run in await graphs.runs()} == {one.caller.trace_id for one in graphs.asked}


def test_nothing_of_it_is_loaded_by_a_program_that_has_none() -> None:
    program = (
        "import sys, rota.engine.scheduler, rota.engine.worker, rota.kinds.graphs\n"
        "from rota.engine import tracing\n"
        "print(tracing.tracing_of_program(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert told.stdout.strip() == b"None []"
