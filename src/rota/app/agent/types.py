"""What every agent can do, if it is allowed to: `shell`, `http_check`, `python`. Others come from a file of its own."""

import fnmatch
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.agent import TYPES, JobType, Order, Refused, TransientError

HTTP_TIMEOUT = 30.0  # seconds
TEXT: Mapping[str, Any] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What this agent may be asked for: patterns over whole commands, and over `module:function`."""

    shell: Sequence[str] = ()
    python: Sequence[str] = ()
    types: str | None = None  # a Python file with job types of its own

    def load(self) -> dict[str, JobType]:
        """The job types by name."""
        TYPES.clear()
        if self.types is not None:
            load_file(self.types)
        built_in = (
            JobType("shell", self.run_shell, {"properties": {"command": TEXT}, "required": ["command"]}),
            JobType(
                "http_check", http_check, read_only=True,
                schema={"properties": {"url": TEXT, "expect_status": {"type": "integer"}}, "required": ["url"]},
            ),
            JobType(
                "python", self.run_python,
                {"properties": {"entry_point": TEXT, "args": {"type": "object"}}, "required": ["entry_point"]},
            ),
        )  # fmt: skip
        return {one.name: one for one in built_in} | dict(TYPES)

    def run_shell(self, order: Order) -> Any:
        command = order.payload["command"]
        if not any(fnmatch.fnmatchcase(command, one) for one in self.shell):
            raise Refused(f"this host does not allow the command {command!r}; see `rota agent run --allow-shell`")
        signal.signal(signal.SIGTERM, lambda *_: None)  # the command decides how it ends; this process tells of it
        code = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, env=environment(order)).returncode
        if code:
            raise CommandFailed(code)
        return {"exit_code": 0}

    def run_python(self, order: Order) -> Any:
        name = order.payload["entry_point"]
        if not any(fnmatch.fnmatchcase(name, one) for one in self.python):
            raise Refused(f"this host does not allow {name!r}; see `rota agent run --allow-python`")
        module, _, attribute = name.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return function(**(order.payload.get("args") or {}))


class CommandFailed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}" if code > 0 else f"signal {-code}")
        self.outcome = {"exit_code": code}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # where it leads was not asked about


def http_check(order: Order) -> Any:
    """Whether a URL answers as it should. What it answers is read by nobody."""
    url, expected = order.payload["url"], order.payload.get("expect_status", 200)
    if not url.startswith(("http://", "https://")):
        raise Refused(f"{url!r} is not an http or https URL")
    try:
        with urllib.request.build_opener(NoRedirect).open(url, timeout=HTTP_TIMEOUT) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError) as error:
        raise TransientError(f"{url}: {error}") from error
    if status != expected:
        raise StatusDiffers(f"{url} answered {status}, not {expected}", status)
    return {"status": status}


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
