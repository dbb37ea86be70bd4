"""Signals that ask a process to stop: the first drains, the second cancels what still runs, the third ends it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
import uvloop

from rota.app.secrets import handed_over
from rota.core.clock import real_sleep
from rota.core.process_groups import die_with_parent

log = structlog.get_logger("rota")


@dataclass(frozen=True, slots=True)
class Shutdown:
    """What a process was asked to do: `drain` finishes the runs under way, `cancel` also stops those."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)

    def signaled(self) -> None:
        """Go one step further; the third ends the process with exit code 1."""
        if not self.drain.is_set():
            self.drain.set()
        elif not self.cancel.is_set():
            self.cancel.set()
        else:
            os._exit(1)


def run_until_signal(main: Callable[[Shutdown], Coroutine[Any, Any, None]]) -> None:
    """Run until `main` returns; SIGTERM and SIGINT ask it to stop."""

    async def guarded() -> None:
        shutdown = Shutdown()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, shutdown.signaled)
        await main(shutdown)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(guarded())


def mind_processes(count: int, secrets: Mapping[str, str]) -> None:
    """Start worker processes like this one, start dead ones again, and pass signals on."""
    command = [sys.executable, "-P", "-m", "rota.app.cli", *sys.argv[1:], "--processes", "1"]  # the last one counts

    async def mind(shutdown: Shutdown) -> None:
        async def pass_on(child: asyncio.subprocess.Process) -> None:
            for asked in (shutdown.drain, shutdown.cancel):
                await asked.wait()
                child.send_signal(signal.SIGTERM)

        async def keep() -> None:
            while not shutdown.drain.is_set():
                with handed_over(secrets) as (variables, descriptors):
                    child = await asyncio.create_subprocess_exec(
                        *command, preexec_fn=die_with_parent, start_new_session=True, pass_fds=descriptors,
                        env={**os.environ, **variables},
                    )  # fmt: skip
                passing = asyncio.ensure_future(pass_on(child))
                await child.wait()
                passing.cancel()
                if not shutdown.drain.is_set():
                    log.error("a worker process died; starting it again", code=child.returncode)
                    await real_sleep(1)

        await asyncio.gather(*(keep() for _ in range(count)))

    run_until_signal(mind)
