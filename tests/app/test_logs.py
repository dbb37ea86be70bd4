"""The log of a process, also while it cannot be written."""

import asyncio
import io
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rota.app.logs import REPEAT_SECONDS, LibraryWarnings, LossyStream
from rota.db.migrate import migrate
from rota.engine.runner import LogHandler, RunLog, current_log
from tests.acceptance.cluster import Process, until
from tests.app.command_line import environment
from tests.app.harness import NINE


class Disk(io.StringIO):
    """A file on a disk that can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_what_cannot_be_written_is_dropped_and_the_gap_is_noted() -> None:
    disk = Disk()
    stream = LossyStream(disk)
    stream.write("one\n")
    disk.full = True
    print("two", file=stream, flush=True)  # two writes: the text and the line's end
    disk.full = False
    stream.write("three\n")
    stream.write("four\n")
    assert disk.getvalue() == "one\n[2 writes to this log failed and were dropped]\nthree\nfour\n"


def test_a_closed_stream_stops_nothing() -> None:
    disk = Disk()
    disk.close()
    stream = LossyStream(disk)
    stream.write("one\n")
    stream.flush()


LIBRARY = logging.getLogger("a_library.http")


@contextmanager
def only_handlers(*handlers: logging.Handler) -> Iterator[None]:
    """Replace the handlers of the root logger, those of pytest included."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [*handlers]
    try:
        yield
    finally:
        root.handlers = before


def test_warnings_of_libraries_are_lines_and_their_repetitions_are_counted() -> None:
    with only_handlers(LogHandler(), LibraryWarnings()), capture_logs() as logs:
        for later in (0, 1, 2, REPEAT_SECONDS + 1):
            record = LIBRARY.makeRecord(
                LIBRARY.name, logging.ERROR, "http.py", 7, "no answer, password=%s", ("x1",), None
            )
            record.created += later
            LIBRARY.handle(record)
        LIBRARY.info("connected")
    first = {"event": "library warning", "log_level": "warning", "logger": "a_library.http"}
    first["message"] = "no answer, password=***"
    assert logs == [first, {**first, "left_out": 2}]


def test_warnings_of_a_run_or_to_handlers_of_the_program_are_left_alone() -> None:
    written = io.StringIO()
    own = logging.StreamHandler(written)
    with only_handlers(LogHandler(), LibraryWarnings()), capture_logs() as logs:
        reset = current_log.set(RunLog("r", lambda: NINE))
        LIBRARY.warning("within a run")
        current_log.reset(reset)
        logging.getLogger().addHandler(own)
        LIBRARY.warning("to the program")
    assert (logs, written.getvalue()) == ([], "to the program\n")


def test_a_worker_within_another_program_keeps_what_logging_prints_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with only_handlers(LogHandler()):
        LIBRARY.info("not printed")
        LIBRARY.warning("printed")
    assert capsys.readouterr().err == "printed\n"


@pytest.mark.long
async def test_receivers_that_are_away_are_logged_and_delay_a_stop_by_seconds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    await asyncio.to_thread(migrate, url)
    (tmp_path / "app.py").write_text(APP)
    env = environment() | {
        "ROTA_DATABASE_URL": url,
        "ROTA_DATA_DIR": str(tmp_path / "data"),
        "ROTA_SENTRY_DSN": "http://key@127.0.0.1:9/1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    command = [sys.executable, "-m", "rota.app.cli", "worker", str(tmp_path / "app.py")]
    worker = Process(command, env, tmp_path / "log")
    try:
        await until(lambda: "Connection refused" in worker.log_text(), 60, "the warning is logged")
        assert "library warning" in worker.log_text()
        worker.signal(signal.SIGTERM)
        assert await worker.ended(15) == 0
    finally:
        worker.kill()


APP = """
from rota import Rota
app = Rota()

@app.task
def ticks():
    return None

app.schedule("often", ticks, every="1s")
"""
