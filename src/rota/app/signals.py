"""Stop signals of a process: the first drains, the second cancels running jobs, the third exits at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import uvloop

from rota.app.secrets import secret_pipes
from rota.core.clock import real_sleep
from rota.core.process_groups import die_with_parent

log = structlog.get_logger("rota")


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop requests: `drain` lets active runs finish, `cancel` cancels them."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)

    def on_signal(self) -> None:
        """Request the next step; the third signal exits with code 1."""
        if not self.drain.is_set():
            self.drain.set()
        elif not self.cancel.is_set():
            self.cancel.set()
        else:
            os._exit(1)


def run_until_signal(main: Callable[[Shutdown], Coroutine[object, None, None]]) -> None:
    """Run `main` until it returns; SIGTERM and SIGINT set the events of its `Shutdown`."""

    async def run_with_signals() -> None:
        shutdown = Shutdown()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, shutdown.on_signal)
        await main(shutdown)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_with_signals())


def supervise_processes(
    count: int, secrets: Mapping[str, str], metrics_ports: Sequence[int] = (), may_end: bool = False
) -> None:
    """Start `count` worker processes with this command line, restart those that die, forward stop signals. Each has one
    of the `metrics_ports`, if there are any. With `may_end`, one that exits with code 0 is not restarted; returns when
    all have ended."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "rota.app.cli",
        *sys.argv[1:],
        "--processes",
        "1",
    ]  # overrides the option before it

    async def supervise(shutdown: Shutdown) -> None:
        async def forward_signals(child: asyncio.subprocess.Process) -> None:
            for event in (shutdown.drain, shutdown.cancel):
                await event.wait()
                child.send_signal(signal.SIGTERM)

        async def keep_running(number: int) -> None:
            own_port = {"ROTA_METRICS_PORT": str(metrics_ports[number])} if metrics_ports else {}
            while not shutdown.drain.is_set():
                with secret_pipes(secrets) as (variables, descriptors):
                    child = await asyncio.create_subprocess_exec(
                        *command,
                        preexec_fn=die_with_parent,
                        start_new_session=True,
                        pass_fds=descriptors,
                        env={**os.environ, **variables, **own_port},
                    )
                forwarding = asyncio.ensure_future(forward_signals(child))
                await child.wait()
                forwarding.cancel()
                if may_end and child.returncode == 0:
                    return
                if not shutdown.drain.is_set():
                    log.error("worker process died; restarting it", code=child.returncode)
                    await real_sleep(1)

        await asyncio.gather(*(keep_running(number) for number in range(count)))

    run_until_signal(supervise)
