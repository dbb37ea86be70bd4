"""`rota agent …`: pair, run, install and inspect the agent of a host, on that host."""

import json
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from rota.frame.cli.connection import Answer, Exit, fail, print_stderr, warn_without_tls
from rota.frame.cli.output import print_data, print_table

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run jobs on this machine for a server.")

Home = Annotated[Path, typer.Option("--dir", envvar="ROTA_AGENT_DIR", help="directory of its key and its journal")]
DEFAULT_HOME = Path(".rota-agent")
Shell = Annotated[
    list[str] | None,
    typer.Option("--allow-shell", help="words of a command, `*` for one word; run without a shell; repeatable"),
]
AnyShell = Annotated[bool, typer.Option("--allow-any-shell", help="run every command, by the system's shell")]
Http = Annotated[
    list[str] | None,
    typer.Option("--allow-http", help="a URL, host or network that http_check may request; `*` allowed; repeatable"),
]
Python = Annotated[
    list[str] | None,
    typer.Option("--allow-python", help="a pattern of module:function, like 'ops.*:restart'; repeatable"),
]
Types = Annotated[Path | None, typer.Option("--types", help="a Python file with job types of this host")]

UNIT = """[Unit]
Description=Rota agent
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={where}
Restart=always
RestartSec=2
# jobs go on while the agent is stopped, started or upgraded, and it finds them again
KillMode=process

[Install]
WantedBy=multi-user.target
"""


@app.command()
def pair(
    ctx: typer.Context,
    token: Annotated[str, typer.Option(help="a pairing token: `rota host token` makes one")],
    server: Annotated[str | None, typer.Option(help="URL of the server")] = None,
    home: Home = DEFAULT_HOME,
    name: Annotated[str | None, typer.Option(help="name of the host; default: the name of the machine")] = None,
) -> None:
    """Pair this machine with a server, as one of its hosts."""
    import httpx

    from rota.kinds.hosts.agent.journal import write_durably

    url = (server or ctx.obj.server or "").rstrip("/")
    if not url:
        fail("no server is set; add --server URL", Exit.USAGE)
    warn_without_tls(url)
    if (home / "agent.json").exists():
        fail(f"{home} is paired already; `rota agent status` shows with which server", Exit.CONFLICT)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        body = {"token": token, "name": name or socket.gethostname()}
        answer = httpx.post(f"{url}/api/agent/pair", json=body, timeout=30)
        paired = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(f"cannot reach the server at {url}: {error}")
    if answer.status_code != 201:
        fail(paired.get("detail", f"status {answer.status_code}"), Exit.REFUSED)
    config = {"server": url, "host_id": paired["host_id"], "name": paired["name"], "key": paired["agent_key"]}
    write_durably(home / "agent.json", json.dumps(config, indent=2).encode())
    shown = {name: config[name] for name in ("host_id", "name", "server")}
    if not print_data(ctx.obj, shown):
        print(f"host {config['name']} ({paired['host_id']}) is paired; now `rota agent run --dir {home}`")


@app.command()
def key(
    home: Home = DEFAULT_HOME,
    text: Annotated[str, typer.Option("--key", envvar="ROTA_AGENT_KEY", help="the new key")] = "",
) -> None:
    """Store a new key, made by `rota host rotate-key`. A running agent uses it at once."""
    from rota.kinds.hosts.agent.journal import write_durably

    config = read_config(home)
    if not text.startswith(f"rota_agent_{config['host_id']}_"):
        fail(f"--key is not a key of host {config['name']}; `rota host rotate-key` makes one", Exit.USAGE)
    write_durably(home / "agent.json", json.dumps({**config, "key": text}, indent=2).encode())


@app.command()
def run(
    home: Home = DEFAULT_HOME,
    allow_shell: Shell = None,
    allow_any_shell: AnyShell = False,
    allow_http: Http = None,
    allow_python: Python = None,
    types: Types = None,
    room: Annotated[int, typer.Option(help="maximum concurrent read-only jobs")] = 8,
) -> None:
    """Run jobs for the server, until stopped. Running jobs outlive the agent; the next one reports their results."""
    import asyncio

    from rota.kinds.hosts.agent.job_types import Allowed
    from rota.kinds.hosts.agent.journal import lock_home
    from rota.kinds.hosts.agent.loop import AgentLoop

    config = read_config(home)
    with lock_home(home) as locked:
        if not locked:
            fail(f"another agent is running in {home}", Exit.CONFLICT)
        allowed = Allowed(
            shell=allow_shell or (),
            python=allow_python or (),
            types=str(types.absolute()) if types else None,
            http=allow_http or (),
            any_shell=allow_any_shell,
        )

        async def main() -> None:
            loop = AgentLoop(home.absolute(), allowed, room)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, loop.stop.set)
            warn_without_tls(config["server"])
            print_stderr(f"agent of host {config['name']}, for {config['server']}")
            await loop.run()

        try:
            asyncio.run(main())
        except (ImportError, ValueError) as error:
            fail(str(error), Exit.USAGE)


@app.command()
def install(
    home: Home = DEFAULT_HOME,
    allow_shell: Shell = None,
    allow_any_shell: AnyShell = False,
    allow_http: Http = None,
    allow_python: Python = None,
    types: Types = None,
    to: Annotated[
        Path | None, typer.Option(help="the file to write, such as /etc/systemd/system/rota-agent.service")
    ] = None,
) -> None:
    """Write a systemd unit that keeps the agent running."""
    read_config(home)
    command = [sys.executable, "-m", "rota.app.cli", "agent", "run", "--dir", str(home.absolute())]
    patterns = {"--allow-shell": allow_shell, "--allow-http": allow_http, "--allow-python": allow_python}
    for option, values in patterns.items():
        command += [part for pattern in values or () for part in (option, pattern)]
    command += ["--allow-any-shell"] if allow_any_shell else []
    command += ["--types", str(types.absolute())] if types else []
    # systemd expands %
    unit = UNIT.format(command=shlex.join(command).replace("%", "%%"), where=home.absolute())
    if to is None:
        print(unit, end="")
        print_stderr("write this to /etc/systemd/system/rota-agent.service (or use --to), then enable it")
        return
    to.write_text(unit)
    print_stderr(f"{to} written; next: systemctl daemon-reload && systemctl enable --now {to.stem}")


@app.command()
def status(ctx: typer.Context, home: Home = DEFAULT_HOME) -> None:
    """Show the server of this host, whether its agent is running, and its last 50 runs."""
    from rota.kinds.hosts.agent.journal import Journal, lock_home

    config = read_config(home)
    with lock_home(home) as locked:
        running = not locked
    runs: list[Answer] = []
    for claim in Journal(home).claims()[-50:]:
        runs.append(
            {
                "job_id": claim.job_id,
                "fence": claim.fence,
                "job_type": claim.order()["job_type"],
                "state": "delivered" if claim.done else claim.state(),
                "status": (claim.result() or {}).get("status"),
            }
        )
    host = {"host_id": config["host_id"], "name": config["name"], "server": config["server"], "running": running}
    if print_data(ctx.obj, {**host, "runs": runs}):
        return
    print(
        f"host {config['name']} ({config['host_id']}) of {config['server']}: agent {'up' if running else 'not running'}"
    )
    print_table(
        ("job", "type", "state", "status"),
        ([run["job_id"], run["job_type"], run["state"], run["status"] or ""] for run in runs),
    )


def read_config(home: Path) -> dict[str, str]:
    try:
        return dict(json.loads((home / "agent.json").read_bytes()))
    except (OSError, ValueError):
        fail(f"{home} is not paired yet: `rota agent pair --server URL --token T --dir {home}`", Exit.NOT_FOUND)
