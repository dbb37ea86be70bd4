"""Commands and other processes of the worker's user do not find the worker's secrets."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rota.core.errors import Invalid
from rota.user_code.processes import check_user
from tests.app.command_line import run, running_server
from tests.kinds.tasks.harness import open_task_harness

TOKEN = "canary-token-0123456789-0123456789"


def output_of(place: Path, command: str) -> str:
    """What a command that runs as a task prints."""
    assert run(place, "task", "add", "look", "--command", command).returncode == 0
    job = json.loads(run(place, "-o", "json", "task", "run", "look").stdout)["job_id"]
    end = time.monotonic() + 30
    shown: dict[str, Any] = {}
    while shown.get("status") not in ("success", "failed"):
        assert time.monotonic() < end, shown
        shown = json.loads(run(place, "-o", "json", "run", "show", job).stdout)
    return str(shown["outcome"]["stdout"])


def test_a_command_does_not_find_the_secrets_of_its_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'canary.db'}"
    with running_server(tmp_path, ROTA_SERVICE_TOKEN=TOKEN, ROTA_DATABASE_URL=url) as place:
        seen = output_of(place, "env; tr '\\0' '\\n' < /proc/$PPID/environ")
        assert "ROTA_SERVICE_TOKEN=" in seen  # it did read the environment of the worker
        assert "canary" not in seen


def test_a_command_does_not_inherit_the_descriptor_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with (tmp_path / "token").open() as file:
        number = file.fileno()
        with running_server(tmp_path, number, ROTA_SERVICE_TOKEN_FILE=f"/dev/fd/{number}") as place:
            look = f"import os; print(os.listdir('/dev/fd')); print(os.pread({number}, 100, 0))"
            seen = output_of(place, f'{sys.executable} -c "{look}" 2>&1; true')
    assert "Bad file descriptor" in seen
    assert "canary" not in seen


CLOSED = """
import ctypes, os, sys
from rota.app.secrets import protect

libc = ctypes.CDLL(None)
reading, writing = os.pipe()
victim = os.fork()
if victim == 0:
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1)  # as after an exec
    if sys.argv[1] == "closed":
        protect()
    os.write(writing, b"x")
    os.read(os.pipe()[0], 1)
os.read(reading, 1)
attacker = os.fork()
if attacker == 0:
    os.setresuid(65534, 65534, 65534)
    try:
        open(f"/proc/{victim}/environ", "rb").read()
        os._exit(1)
    except PermissionError:
        os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(attacker, 0)[1])
os.kill(victim, 9)
os.waitpid(victim, 0)
print(libc.prctl(3), code)
"""


def test_a_protected_process_is_closed_to_other_processes_of_its_user() -> None:
    if os.geteuid() != 0:
        command = "import ctypes; from rota.app.secrets import *; protect(); print(ctypes.CDLL(None).prctl(3), 0)"
        assert subprocess.check_output([sys.executable, "-c", command], text=True).split() == ["0", "0"]
        return
    shown = [subprocess.check_output([sys.executable, "-c", CLOSED, how], text=True) for how in ("open", "closed")]
    assert [line.split()[1] for line in shown] == ["1", "0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as other users")
async def test_a_command_that_runs_as_another_user_cannot_read_the_data_directory(
    clean_url: str, tmp_path: Path
) -> None:
    secret = tmp_path / "admin.key"  # below a directory of mode 0700
    secret.write_text("canary")
    check_user("nobody")
    harness = await open_task_harness(clean_url, run_as={"": "daemon", "default": "nobody"})
    try:
        command = f"id -un; id -G; echo $USER; cat {secret}; true"
        run = await harness.execute(await harness.store(command, task_type="shell", cwd="/"))
        name, groups, variable = run["outcome"]["stdout"].split("\n")[:3]
        assert (name, variable, "0" in groups.split()) == ("nobody", "nobody", False)
        assert "canary" not in run["outcome"]["stdout"]
        assert "denied" in run["outcome"]["stderr"]
    finally:
        await harness.close()


def test_a_user_for_commands_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(Invalid, match="is not a user of this machine"):
        check_user("no-such-user-here")
