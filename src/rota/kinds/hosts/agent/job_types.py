"""What every agent can do, if it is allowed to: `shell`, `http_check`, `python`. Others come from a file of its own."""

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
from typing import Any

from rota.agent import TYPES, JobType, Order, Refused, TransientError
from rota.kinds.hosts.agent.allow import UrlPattern, allowed_address, allowed_command, check_command_pattern

HTTP_TIMEOUT = 30.0  # seconds
TEXT: Mapping[str, Any] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What this agent may be asked for: patterns over the words of commands, over `module:function` and over URLs."""

    shell: Sequence[str] = ()
    python: Sequence[str] = ()
    types: str | None = None  # a Python file with job types of its own
    http: Sequence[str] = ()
    any_shell: bool = False  # run every command, by the system's shell

    def load(self) -> dict[str, JobType]:
        """The job types by name. Raises ValueError for a pattern that cannot be read."""
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
                "http_check", self.http_check, read_only=True,
                schema={"properties": {"url": TEXT, "expect_status": {"type": "integer"}}, "required": ["url"]},
            ),
            JobType(
                "python", self.run_python,
                {"properties": {"entry_point": TEXT, "args": {"type": "object"}}, "required": ["entry_point"]},
            ),
        )  # fmt: skip
        return {one.name: one for one in built_in} | dict(TYPES)

    def run_shell(self, order: Order) -> Any:
        """Run an allowed command without a shell; with `any_shell` every command by the system's shell."""
        text = order.payload["command"]
        command: str | list[str] = text if self.any_shell else allowed_command(self.shell, text)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the command decides how it ends; this process tells of it
        try:
            done = subprocess.run(command, shell=self.any_shell, stdin=subprocess.DEVNULL, env=environment(order))
        except (FileNotFoundError, PermissionError) as error:
            raise Refused(f"the command {text!r} cannot start: {error}") from error
        if done.returncode:
            raise CommandFailed(done.returncode)
        return {"exit_code": 0}

    def run_python(self, order: Order) -> Any:
        name = order.payload["entry_point"]
        if not any(fnmatch.fnmatchcase(name, one) for one in self.python):
            raise Refused(f"this host does not allow {name!r}; see `rota agent run --allow-python`")
        module, _, attribute = name.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return function(**(order.payload.get("args") or {}))

    def http_check(self, order: Order) -> Any:
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
                httpx.Client(timeout=HTTP_TIMEOUT, trust_env=False) as client,
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
        super().__init__(f"exit code {code}" if code > 0 else f"signal {-code}")
        self.outcome = {"exit_code": code}


class StatusDiffers(Exception):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.outcome = {"status": status}


def environment(order: Order) -> dict[str, str]:
    """What a command is told: facts about its run and its server. It inherits what the agent was started with, but for
    Rota's own settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    facts = {
        "ROTA_RUN_ID": order.run_id, "ROTA_JOB_ID": order.job_id, "ROTA_ATTEMPT": str(order.attempt),
        "ROTA_FENCE": str(order.fence), "ROTA_SLOT": order.slot or "", "ROTA_SERVER_ID": str(order.server["id"]),
        "ROTA_SERVER_NAME": str(order.server["name"]), "ROTA_SERVER_CONFIG": json.dumps(order.server["config"]),
        "ROTA_PAYLOAD": json.dumps(dict(order.payload)),
    }  # fmt: skip
    return {**inherited, **facts}


def load_file(where: str) -> None:
    spec = importlib.util.spec_from_file_location("rota_job_types", Path(where))
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rota_job_types"] = module
    spec.loader.exec_module(module)
