"""Log lines about runs that ended."""

from sqlalchemy import select
from structlog.testing import capture_logs

from rota.db.tables import runs
from tests.engine.harness import Harness


async def test_a_failed_run_is_a_warning_with_target_run_and_error(harness: Harness) -> None:
    await harness.schedule("report")
    harness.fake_runner.errors = [ValueError("no such day\nmore of it \x1b[31m")]
    with capture_logs() as lines:
        job = await harness.run_now("report")
        await harness.work()
    (line,) = [line for line in lines if line["event"] == "run ended"]
    (run,) = await harness.db.read(lambda tx: list(tx.execute(select(runs.c.id).where(runs.c.job_id == job)).scalars()))
    assert (line["log_level"], line["target"], line["run"]) == ("warning", "report", run)
    assert (line["status"], line["error"]) == ("failed", "ValueError: no such day")


async def test_failures_of_a_large_batch_have_lines_of_their_own(harness: Harness) -> None:
    await harness.schedule("report")
    harness.fake_runner.errors = [None] * 29 + [ValueError("no such day")]
    await harness.engine.enqueue(harness.org_id, "task", "report", [None] * 30)
    with capture_logs() as lines:
        await harness.work()
    assert [line["error"] for line in lines if line["event"] == "run ended" and "error" in line] == [
        "ValueError: no such day"
    ]
