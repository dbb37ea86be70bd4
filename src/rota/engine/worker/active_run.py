"""A run that is executed by this process, and how it is stopped."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from rota.core.clock import stopwatch
from rota.core.model import Attempt
from rota.engine.runner import Prepare, RunContext

NO_HEARTBEAT = "heartbeat"  # reason of a stop


@dataclass(slots=True)
class ActiveRun:
    """One attempt from its launch to its end."""

    attempt: Attempt
    ctx: RunContext
    prepare: Prepare
    task: asyncio.Task[object] | None = None
    started: bool = False  # False while it waits for a place among isolated runs
    start_recorded: bool = False
    stopped_for: str | None = None  # "timeout", "heartbeat", "shutdown", "lost", or who canceled it
    timer: asyncio.TimerHandle | None = None
    heartbeat_timer: asyncio.TimerHandle | None = None

    def stop(self, reason: str) -> None:
        """Ask the run to stop, once: sets `ctx.canceled` and cancels its task. Its runner ends what it started."""
        if self.stopped_for is None:
            self.stopped_for = reason
            self.ctx.canceled.set()
            self.cancel_task()

    def cancel_task(self) -> None:
        """Cancel the task, and again after each grace period while it swallows the cancellation."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            asyncio.get_running_loop().call_later(self.ctx.cancel_grace.total_seconds(), self.cancel_task)

    def start_timeout(self, limit: timedelta) -> None:
        """Stop the run when it takes longer."""
        self.timer = asyncio.get_running_loop().call_later(limit.total_seconds(), self.stop, "timeout")

    def expect_heartbeats(self, limit: timedelta) -> None:
        """Stop the run when it does not call `ctx.heartbeat()` for so long, from now on."""
        self.ctx.heartbeat()
        self.check_heartbeat(limit.total_seconds())

    def check_heartbeat(self, seconds: float) -> None:
        left = self.ctx.heartbeat_at + seconds - stopwatch()
        if left <= 0:
            self.stop(NO_HEARTBEAT)
        else:
            delay = min(left, seconds)  # `left` is infinite until a child process is ready
            self.heartbeat_timer = asyncio.get_running_loop().call_later(delay, self.check_heartbeat, seconds)

    def stop_timeout(self) -> None:
        for timer in (self.timer, self.heartbeat_timer):
            if timer is not None:
                timer.cancel()


ActiveRuns = dict[str, ActiveRun]  # by job id; one for all registrations of a process
