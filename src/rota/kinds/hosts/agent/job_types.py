"""The built-in job types of an agent, `shell`, `http_check` and `python`; others come from a file of the host."""

import fnmatch
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rota.agent import TYPES, JobType, Order, Refused, TransientError
from rota.core.process_groups import describe_exit
from rota.kinds.hosts.agent.allow import UrlPattern, allowed_address, allowed_command, check_command_pattern

HTTP_CHECK_SECONDS = 30.0
TEXT: Mapping[str, object] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What this agent is allowed to run: patterns of commands, of `module:function` and of URLs."""

    shell: Sequence[str] = ()
    python: Sequence[str] = ()
    types: str | None = None  # a Python file with job types of its own
    http: Sequence[str] = ()
    any_shell: bool = False  # run every command, by the system's shell

    def load(self) -> dict[str, JobType]:
        """Return the job types by name. Raises ValueError for an invalid pattern."""
        for pattern in self.shell:
            check_command_pattern(pattern)
        for pattern in self.http:
            UrlPattern(pattern)
        TYPES.clear()
        if self.types is not None:
            load_file(self.types)
        built_in = (
            JobType("shell", self.run_shell, {"properties": {"command": TEXT}, "required": ["command"]}),
            JobType(
                "http_check",
                self.http_check,
                read_only=True,
                schema={"properties": {"url": TEXT, "expect_status": {"type": "integer"}}, "required": ["url"]},
            ),
            JobType(
                "python",
                self.run_python,
                {"properties": {"entry_point": TEXT, "args": {"type": "object"}}, "required": ["entry_point"]},
            ),
        )
        return {job_type.name: job_type for job_type in built_in} | dict(TYPES)

    def run_shell(self, order: Order) -> object:
        """Run an allowed command without a shell; with `any_shell` every command by the system's shell."""
        text = order.payload["command"]
        command: str | list[str] = text if self.any_shell else allowed_command(self.shell, text)
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # the group got it too: wait for the command, and report how it ended
        try:
            done = subprocess.run(command, shell=self.any_shell, stdin=subprocess.DEVNULL, env=environment(order))
        except (FileNotFoundError, PermissionError) as error:
            raise Refused(f"the command {text!r} cannot start: {error}") from error
        if done.returncode:
            raise CommandFailed(done.returncode)
        return {"exit_code": 0}

    def run_python(self, order: Order) -> object:
        name = order.payload["entry_point"]
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.python):
            raise Refused(f"this host does not allow {name!r}; see `rota agent run --allow-python`")
        module, _, attribute = name.partition(":")
        function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
        return function(**(order.payload.get("args") or {}))

    def http_check(self, order: Order) -> object:
        """GET an allowed URL and compare the status. The request goes to the address that was checked. Redirects are
        not followed, proxies of the environment not used, the body not read."""
        import httpx  # here: only this job type needs it, and each run of any type imports this module

        text, expected = order.payload["url"], order.payload.get("expect_status", 200)
        url, address = allowed_address(self.http, text)
        netloc = (f"[{address}]" if ":" in address else address) + (f":{url.port}" if url.port else "")
        headers, extensions = {"Host": url.netloc}, {"sni_hostname": url.hostname}
        target = url._replace(netloc=netloc, fragment="").geturl()
        try:
            with (
                httpx.Client(timeout=HTTP_CHECK_SECONDS, trust_env=False) as client,
                client.stream("GET", target, headers=headers, extensions=extensions) as response,
            ):
                status = response.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransientError(f"{text}: {error}") from error
        if status != expected:
            raise StatusDiffers(f"{text} answered {status}, not {expected}", status)
        return {"status": status}


class CommandFailed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(describe_exit(code))
        self.outcome = {"exit_code": code}


class StatusDiffers(Exception):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.outcome = {"status": status}


def environment(order: Order) -> dict[str, str]:
    """Return the environment of a command: that of the agent without ROTA_* settings, with the ids of its run, its
    server and its payload."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    order_variables = {
        "ROTA_RUN_ID": order.run_id,
        "ROTA_JOB_ID": order.job_id,
        "ROTA_ATTEMPT": str(order.attempt),
        "ROTA_FENCE": str(order.fence),
        "ROTA_SLOT": order.slot or "",
        "ROTA_SERVER_ID": str(order.server["id"]),
        "ROTA_SERVER_NAME": str(order.server["name"]),
        "ROTA_SERVER_CONFIG": json.dumps(order.server["config"]),
        "ROTA_PAYLOAD": json.dumps(dict(order.payload)),
    }
    return {**inherited, **order_variables}


def load_file(path: str) -> None:
    spec = importlib.util.spec_from_file_location("rota_job_types", Path(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rota_job_types"] = module
    spec.loader.exec_module(module)
