"""Spans, recorder by the real SDK: one trace from the slot over the queue to what a graph calls."""

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
from tests.spans import SpanRecorder, trace_id


@pytest.fixture
def recorder(graphs: Graphs) -> SpanRecorder:
    recorded = SpanRecorder()
    graphs.harness.engine.tracing = Tracing(recorded.provider.get_tracer("rota"))
    return recorded


async def wire(graphs: Graphs, run_id: str) -> dict[str, Any]:
    return await graphs.harness.db.read(run_reports.run, graphs.harness.org_id, run_id)


async def test_a_trace_leads_from_the_slot_through_the_queue_to_the_call_of_a_model(
    graphs: Graphs, recorder: SpanRecorder
) -> None:
    async def inner(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        with trace.get_tracer("mine", tracer_provider=recorder.provider).start_as_current_span("model call"):
            yield TextDelta(caller.trace_id)

    await graphs.schedule("poem", graphs.declare("inner", inner))
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire_elsewhere()
    (job,) = await graphs.harness.queue()
    assert [span.name for span in recorder.spans] == ["fire poem"]
    assert job.trace.split("-")[1:3] == [trace_id(recorder.spans[0]), f"{recorder.spans[0].context.span_id:016x}"]
    graphs.harness.clock.set(at("9:11"))
    await graphs.harness.work()
    target = "python:inner"
    assert recorder.chain("model call") == [
        "model call",
        f"graph {target}",
        f"run {target}",
        f"claim {target}",
        "fire poem",
    ]
    (run,) = await graphs.runs()
    assert {trace_id(span) for span in recorder.spans} == {run.trace_id, run.outcome["content"]}
    claim, ran = recorder.called(f"claim {target}"), recorder.called(f"run {target}")
    assert (claim.end_time or 0) - (claim.start_time or 0) == 60 * 10**9  # so long it waited
    assert ran.attributes is not None
    assert (ran.attributes["rota.run_id"], ran.attributes["rota.job_id"]) == (run.id, run.job_id)
    assert ran.status.is_ok or ran.status.is_unset


async def test_all_attempts_of_a_job_are_one_trace_and_spans_have_only_the_type_of_an_error(
    graphs: Graphs, recorder: SpanRecorder
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
    tries = [span for span in recorder.spans if span.name == f"run {name}"]
    assert len(tries) == 3
    assert {trace_id(span) for span in recorder.spans} == {first.trace_id}
    assert {span.status.description for span in tries} == {"WorkFailed"}
    assert "sk-123" not in "".join(span.to_json() for span in recorder.spans)


async def test_a_run_that_is_not_let_begin_says_why(graphs: Graphs, recorder: SpanRecorder) -> None:
    held = await graphs.grant()
    await graphs.schedule(grant_id=held)
    await graphs.harness.engine.revoke_grant(graphs.harness.org_id, held)
    await graphs.harness.run_until(at("9:10"))
    assert recorder.called("run python:poet").status.description == "grant_revoked"
    assert recorder.chain("run python:poet")[-1] == "fire job"


async def test_a_request_that_is_traced_is_the_parent_of_what_it_causes(graphs: Graphs, recorder: SpanRecorder) -> None:
    manager, org_id = GraphManager(graphs.harness.engine, graphs.harness.org_id), graphs.harness.org_id
    asked = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await manager.run("python:poet", {}, await graphs.grant(), "", asked)
    await graphs.harness.work()
    assert recorder.chain("graph python:poet")[2:] == ["claim python:poet", "00f067aa0ba902b7"]
    assert graphs.asked[0].caller.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    with recorder.provider.get_tracer("mine").start_as_current_span("request"):
        await graphs.harness.engine.enqueue(org_id, "task", "hello", [None])
    await graphs.harness.work()
    assert recorder.chain("run hello") == ["run hello", "claim hello", "request"]


async def test_a_job_that_came_without_a_trace_has_its_own(graphs: Graphs, recorder: SpanRecorder) -> None:
    manager = GraphManager(graphs.harness.engine, graphs.harness.org_id)
    job_id = await manager.run("python:poet", {}, await graphs.grant(), "")
    await graphs.harness.work()
    own = trace_id_of(job_id)
    assert recorder.chain("run python:poet")[2:] == [traceparent(own).split("-")[2]]
    (run,) = await graphs.runs()
    assert own == run.trace_id == (await wire(graphs, run.id))["trace_id"] == trace_id(recorder.spans[0])


async def test_a_slot_that_another_process_fired_has_no_span(graphs: Graphs, recorder: SpanRecorder) -> None:
    await graphs.schedule("poem")
    graphs.harness.clock.set(at("9:10"))
    scheduler = graphs.harness.scheduler
    planned = (await scheduler.poll()).planned
    await Scheduler(graphs.harness.engine).step()
    late = Tracing(recorder.provider.get_tracer("rota")).trace_fires(planned)
    assert await scheduler.fire_planned(late, at("9:10")) == set()
    assert [span.name for span in recorder.spans] == ["fire poem"]
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
    assert {run.trace_id for run in await graphs.runs()} == {request.caller.trace_id for request in graphs.asked}


def test_nothing_of_it_is_loaded_by_a_program_that_has_none() -> None:
    program = (
        "import sys, rota.engine.scheduler, rota.engine.worker, rota.kinds.graphs\n"
        "from rota.engine import tracing\n"
        "print(tracing.tracing_of_program(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"None []"
