"""`rota demo` and `rota init`: something to look at, and a project to start from."""

import getpass
import shlex
import shutil
import socket
import sys
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from rota.app.cli.processes import Port, start
from rota.frame.cli.connection import Exit, fail, print_stderr
from rota.version import DISTRIBUTION, __version__

if TYPE_CHECKING:
    from rota.app.settings import Settings

STARTERS = "rota.app.starters"
LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8420
DEMO_DRAIN_SECONDS = 2  # Ctrl-C ends the demo soon
DEMO_NOTES = """
What to look at in the dashboard:
  Now         what runs, what is due next, what needs attention
  Schedules   heartbeat (a function), disk (a command, by cron), flaky (fails once, then is retried)
  Workflows   orders: a producer publishes events, a consumer handles them
In another terminal:
  cd {directory}
  {rota} run list             what ran
  {rota} why flaky            why it has its status
  {rota} slots audit          proof that every slot has a verdict
The program is {directory}/demo.py: change it and start the demo again. Ctrl-C ends it.
"""

PROJECT = ("app.py", "test_app.py", "rota.env", ".gitignore")


class Supervisor(StrEnum):
    """What keeps the processes of a project running."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"
    NONE = "none"


SUPERVISOR_FILES = {
    Supervisor.SYSTEMD: ("rota.service",),
    Supervisor.COMPOSE: ("compose.yaml", "Dockerfile", "requirements.txt"),
    Supervisor.NONE: (),
}
START_COMMANDS = {
    Supervisor.SYSTEMD: "sudo cp rota.service /etc/systemd/system/ && sudo systemctl enable --now rota",
    Supervisor.COMPOSE: "docker compose up --build",
    Supervisor.NONE: "{rota} up app.py",
}


def demo(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(help="directory of the program and its data")] = Path("rota-demo"),
    port: Port = None,
) -> None:
    """Run a small program with schedules of several kinds, on SQLite and on this machine only."""
    program, data_dir = directory / "demo.py", directory.absolute() / ".rota"

    def run(main: ModuleType, settings: "Settings") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if not program.exists():
            program.write_text(files(STARTERS).joinpath("demo.py").read_text())
        main.up(
            settings,
            str(program),
            started=lambda: print_stderr(DEMO_NOTES.format(directory=directory, rota=own_command())),
            stopped=lambda: print_stderr(
                f"the demo has ended; program and data are in {directory.absolute()}: the same command continues, "
                "and starts anew if you delete the directory"
            ),
        )

    options = {  # all that the environment could set otherwise: a demo does not write to another database
        "data_dir": data_dir,
        "database_url": f"sqlite:///{data_dir / 'rota.db'}",
        "host": LOOPBACK,
        "port": free_port() if port is None else port,
        "drain_seconds": DEMO_DRAIN_SECONDS,
    }
    start(ctx, run, **options)


def free_port() -> int:
    """Return the default port, or 0 (any) if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


def init(
    directory: Annotated[Path, typer.Argument(help="directory of the project; created if it does not exist")] = Path(),
    supervisor: Annotated[
        Supervisor, typer.Option("--with", help="also write the file of what keeps it running")
    ] = Supervisor.NONE,
) -> None:
    """Write a small project: a program, a test of it, settings. Existing files are never overwritten."""
    names = (*PROJECT, *SUPERVISOR_FILES[supervisor])
    existing = [name for name in names if (directory / name).exists()]
    if existing:
        fail(f"{directory.absolute()} already has {', '.join(existing)}; nothing was written", Exit.CONFLICT)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            with (directory / name).open("x") as file:
                file.write(project_file(name, directory.absolute()))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    print_stderr(f"{directory.absolute()}: {', '.join(names)}")
    change = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    python = own_command("python")
    print_stderr("next:")
    print_stderr(f"  {change}{START_COMMANDS[supervisor].format(rota=own_command())}")
    pytest = "" if find_spec("pytest") else f"{python} -m pip install pytest && "
    print_stderr(f"  {change}{pytest}{python} -m pytest")


def own_command(name: str = "rota") -> str:
    """Return how a shell starts a program of this installation: by its name if it is the first on PATH, else by path,
    as in a virtual environment that is not activated."""
    program = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    return name if on_path is not None and Path(on_path).absolute() == program else shlex.quote(str(program))


def project_file(name: str, directory: Path) -> str:
    """Return the text of a file of a new project in `directory`."""
    text = files(STARTERS).joinpath("project", f"{name.removeprefix('.')}.template").read_text()
    if name not in {"rota.service", "requirements.txt"}:
        return text
    values = {
        "directory": str(directory).replace("%", "%%"),  # systemd expands %
        "command": shlex.join([sys.executable, "-P", "-m", "rota.app.cli"]).replace("%", "%%"),
        "user": getpass.getuser(),
        "distribution": DISTRIBUTION,
        "version": __version__,
    }
    return Template(text).substitute(values)
