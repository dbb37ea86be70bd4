"""Random sequences of commands and crashes: each slot of a trigger has exactly one verdict and at most one job.

`ROTA_TEST_SOAK=1` looks much longer.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from rota.core.errors import AuthError, Conflict, Invalid, LogicError, NotFound, TransientError
from rota.db.tables import jobs, runs, schedules
from rota.engine.serial_keys import headless
from tests.databases import copy_sqlite, empty_postgres
from tests.engine.harness import MINUTE, Harness, open_harness

SOAK = bool(os.environ.get("ROTA_TEST_SOAK"))
REFUSALS = (Conflict, Invalid, NotFound)

names = st.sampled_from(["a", "b"])
triggers = st.sampled_from(
    [
        {"cron_expression": "*/10 * * * *"},
        {"cron_expression": "7,38 * * * *"},
        {"cron_expression": "0 */2 * * *", "timezone": "Europe/Oslo"},
        {"interval": "13m"},
        {"interval": "1h30m"},
        {"cron_expression": "*/20 * * * *", "window_start": "09:00", "window_end": "15:30"},
        {"cron_expression": "0 3 * * *", "window_start": "10:00", "window_end": "11:00"},
        {"cron_expression": "*/15 * * * *", "jitter_seconds": 1500},
    ]
)
policies = st.fixed_dictionaries(
    {
        "misfire": st.sampled_from(["skip", "once", "all"]),
        "overlap": st.sampled_from(["queue_one", "queue_all", "skip", "allow", "replace"]),
        "catch_up_limit": st.sampled_from([1, 3, 100]),
        "max_runs": st.sampled_from([None, None, 2, 9]),
        "start_deadline_seconds": st.sampled_from([None, None, 600]),
        "retry": st.sampled_from([None, {"max_retries": 2, "backoff_ms": 120_000}]),
    }
)
spans = st.integers(1, 150).map(lambda minutes: minutes * MINUTE)


class Life(RuleBasedStateMachine):
    """Two schedules of one org, and everything that can happen to them."""

    url: ClassVar[str]
    template: ClassVar[Path | None]

    @initialize(trigger=triggers, policy=policies)
    def begin(self, trigger: dict[str, Any], policy: dict[str, Any]) -> None:
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="rota-life-"))
        url = self.url
        if self.template is not None:
            url = f"sqlite:///{self.folder / 'rota.db'}"
            copy_sqlite(self.template, url)
        else:
            empty_postgres(url)
        self.harness: Harness = self.run(open_harness(url))
        self.run(self.harness.schedule("a", cron=None, **trigger, **policy))

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    def try_to(self, step: Coroutine[Any, Any, Any]) -> Any:
        """Commands may be rejected, but only with these messages."""
        try:
            return self.run(step)
        except REFUSALS:
            return None

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.run(self.harness.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    # time

    @rule(span=spans)
    def live(self, span: timedelta) -> None:
        self.run(self.harness.run_until(self.harness.clock.now() + span))

    @rule(span=spans, times=st.sampled_from([1, 1, 8]))
    def nobody_is_up(self, span: timedelta, times: int) -> None:
        self.run(self.harness.start_at(self.harness.clock.now() + span * times))

    @rule(span=spans)
    def the_clock_jumps_ahead_and_nothing_acts(self, span: timedelta) -> None:
        self.harness.clock.set(self.harness.clock.now() + span)

    @rule(span=spans)
    def the_clock_is_set_back(self, span: timedelta) -> None:
        self.harness.clock.set(self.harness.clock.now() - span)

    # work

    @rule(long=st.booleans(), stubborn=st.booleans())
    def runs_become(self, long: bool, stubborn: bool) -> None:
        if not self.harness.fake_runner.gates:
            self.harness.fake_runner.long, self.harness.fake_runner.stubborn = (lambda job: long), stubborn

    @rule()
    def long_runs_end(self) -> None:
        self.run(self.harness.release())

    @rule(error=st.sampled_from([ValueError("x"), LogicError("x"), TransientError("x"), AuthError("x")]))
    def the_next_run_fails(self, error: Exception) -> None:
        self.harness.fake_runner.errors.append(error)

    # people

    @precondition(lambda self: len(self.run(self.harness.rows(select(schedules.c.id)))) < 4)
    @rule(name=names, trigger=triggers, policy=policies)
    def create(self, name: str, trigger: dict[str, Any], policy: dict[str, Any]) -> None:
        self.try_to(self.harness.schedule(name, cron=None, **trigger, **policy))

    @rule(name=names, trigger=triggers)
    def edit_trigger(self, name: str, trigger: dict[str, Any]) -> None:
        cleared = {"window_start": None, "window_end": None, "jitter_seconds": 0, "timezone": "UTC"}
        self.try_to(self.harness.edit(name, **{**cleared, **trigger}))

    @rule(name=names, policy=policies)
    def edit_policy(self, name: str, policy: dict[str, Any]) -> None:
        self.try_to(self.harness.edit(name, **policy))

    @rule(name=names, enabled=st.booleans())
    def enable(self, name: str, enabled: bool) -> None:
        self.try_to(self.harness.edit(name, enabled=enabled))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.try_to(self.harness.engine.delete_schedule(self.harness.org_id, name))

    @rule(name=names, until=st.none() | spans)
    def pause(self, name: str, until: timedelta | None) -> None:
        end = until and self.harness.clock.now() + until
        self.try_to(self.harness.engine.pause_schedule(self.harness.org_id, name, until=end))

    @rule(name=names, gap=st.sampled_from(["skip", "once", "all"]))
    def resume(self, name: str, gap: str) -> None:
        self.try_to(self.harness.engine.resume_schedule(self.harness.org_id, name, gap=gap))

    @rule(until=st.none() | spans)
    def freeze(self, until: timedelta | None) -> None:
        self.try_to(self.harness.engine.freeze(self.harness.org_id, until=until and self.harness.clock.now() + until))

    @rule()
    def unfreeze(self) -> None:
        self.try_to(self.harness.engine.unfreeze(self.harness.org_id))

    @rule(name=names)
    def skip_next(self, name: str) -> None:
        self.try_to(self.harness.engine.skip_next(self.harness.org_id, name))

    @rule(name=names, back=spans, wide=spans, reprocess=st.booleans(), limit=st.sampled_from([1, 3, 100]))
    def backfill(self, name: str, back: timedelta, wide: timedelta, reprocess: bool, limit: int) -> None:
        since = self.harness.clock.now() - 3 * back
        self.try_to(self.harness.backfill(since, since + wide, name, reprocess=reprocess, limit=limit))

    @rule(name=names, overlap=st.sampled_from([None, "queue_one", "allow", "replace", "skip"]))
    def run_now(self, name: str, overlap: str | None) -> None:
        self.try_to(self.harness.run_now(name, overlap=overlap))

    @rule(pick=st.integers(0, 1000))
    def retry(self, pick: int) -> None:
        run_ids = self.run(self.harness.rows(select(runs.c.id).order_by(runs.c.id)))
        if run_ids:
            self.try_to(self.harness.engine.retry(self.harness.org_id, run_ids[pick % len(run_ids)].id))

    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        job_ids = self.run(self.harness.rows(select(jobs.c.id).order_by(jobs.c.id)))
        if job_ids:
            self.try_to(self.harness.engine.cancel(self.harness.org_id, job_ids[pick % len(job_ids)].id))

    # always

    @invariant()
    def every_slot_has_one_verdict(self) -> None:
        if hasattr(self, "harness"):
            self.run(self.harness.check())

    @invariant()
    def no_serial_key_waits_without_a_head(self) -> None:
        if hasattr(self, "harness"):
            assert self.run(self.harness.db.read(headless)) == []


def live(url: str, template: Path | None, examples: int, steps: int) -> None:
    machine = type("Life", (Life,), {"url": url, "template": template})
    how = settings(
        max_examples=examples * (50 if SOAK else 1),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        derandomize=not SOAK,
    )
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.long
@pytest.mark.timeout(36_000 if SOAK else 300)
def test_random_lives_on_sqlite(sqlite_template: Path) -> None:
    live("", sqlite_template, examples=20, steps=30)


@pytest.mark.long
@pytest.mark.timeout(36_000 if SOAK else 300)
def test_random_lives_on_postgresql(shared_postgres: str) -> None:
    live(shared_postgres, None, examples=5, steps=20)
