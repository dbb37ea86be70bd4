"""`rota agent …`: the process on a host, and what an operator does with it there."""

import json
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rota.frame.cli.connection import Exit, fail, print_stderr, warn_without_tls
from rota.frame.cli.output import print_data, print_table

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run jobs on this machine for a server.")

Home = Annotated[Path, typer.Option("--dir", envvar="ROTA_AGENT_DIR", help="where its key and its journal are")]
HERE = Path(".rota-agent")
Shell = Annotated[
    list[str] | None,
    typer.Option("--allow-shell", help="words of a command, `*` for one word; run without a shell; repeatable"),
]
AnyShell = Annotated[bool, typer.Option("--allow-any-shell", help="run every command, by the system's shell")]
Http = Annotated[
    list[str] | None,
    typer.Option("--allow-http", help="a URL, host or network that http_check may request; `*` allowed; repeatable"),
]
Python = Annotated[list[str] | None, typer.Option("--allow-python", help="a pattern over module:function; likewise")]
Types = Annotated[Path | None, typer.Option("--types", help="a Python file with job types of its own")]

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
    home: Home = HERE,
    name: Annotated[str | None, typer.Option(help="what the host is called; else as the machine")] = None,
) -> None:
    """Make this machine a host of the server."""
    import httpx

    from rota.kinds.hosts.agent.journal import write_down

    url = (server or ctx.obj.server or "").rstrip("/")
    if not url:
        fail("which server? say --server URL", Exit.USAGE)
    warn_without_tls(url)
    if (home / "agent.json").exists():
        fail(f"{home} is paired already; `rota agent status` tells with whom", Exit.CONFLICT)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        body = {"token": token, "name": name or socket.gethostname()}
        answer = httpx.post(f"{url}/api/agent/pair", json=body, timeout=30)
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(f"cannot reach the server at {url}: {error}")
    if answer.status_code != 201:
        fail(told.get("detail", f"status {answer.status_code}"), Exit.REFUSED)
    config = {"server": url, "host_id": told["host_id"], "name": told["name"], "key": told["agent_key"]}
    write_down(home / "agent.json", json.dumps(config, indent=2).encode())
    shown = {name: config[name] for name in ("host_id", "name", "server")}
    if not print_data(ctx.obj, shown):
        print(f"host {config['name']} ({told['host_id']}) is paired; now `rota agent run --dir {home}`")


@app.command()
def key(
    home: Home = HERE, text: Annotated[str, typer.Option("--key", envvar="ROTA_AGENT_KEY", help="the new key")] = ""
) -> None:
    """Take a new key, of `rota host rotate-key`. A running agent uses it at once."""
    from rota.kinds.hosts.agent.journal import write_down

    config = read_config(home)
    if not text.startswith(f"rota_agent_{config['host_id']}_"):
        fail("this is not a key of this host", Exit.USAGE)
    write_down(home / "agent.json", json.dumps({**config, "key": text}, indent=2).encode())


@app.command()
def run(
    home: Home = HERE,
    allow_shell: Shell = None,
    allow_any_shell: AnyShell = False,
    allow_http: Http = None,
    allow_python: Python = None,
    types: Types = None,
    room: Annotated[int, typer.Option(help="how many jobs that only look may run at once")] = 8,
) -> None:
    """Run jobs for the server, until stopped. Jobs that run then go on, and are found again."""
    import asyncio

    from rota.kinds.hosts.agent.job_types import Allowed
    from rota.kinds.hosts.agent.journal import alone
    from rota.kinds.hosts.agent.loop import Courier

    config = read_config(home)
    with alone(home) as mine:
        if not mine:
            fail(f"another agent runs on {home}", Exit.CONFLICT)
        allowed = Allowed(
            allow_shell or (), allow_python or (), str(types.absolute()) if types else None, allow_http or (),
            allow_any_shell,
        )  # fmt: skip

        async def main() -> None:
            courier = Courier(home.absolute(), allowed, room)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, courier.stop.set)
            warn_without_tls(config["server"])
            print_stderr(f"agent of host {config['name']}, for {config['server']}")
            await courier.run()

        try:
            asyncio.run(main())
        except (ImportError, ValueError) as error:
            fail(str(error), Exit.USAGE)


@app.command()
def install(
    home: Home = HERE,
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
    # a unit reads % as its own
    unit = UNIT.format(command=shlex.join(command).replace("%", "%%"), where=home.absolute())
    if to is None:
        print(unit, end="")
        print_stderr("write this to /etc/systemd/system/rota-agent.service (or give --to), then enable it")
        return
    to.write_text(unit)
    print_stderr(f"{to} is written; now: systemctl daemon-reload && systemctl enable --now {to.stem}")


@app.command()
def status(ctx: typer.Context, home: Home = HERE) -> None:
    """Whose host this is, whether its agent runs, and what it has in hand."""
    from rota.kinds.hosts.agent.journal import Journal, alone

    config = read_config(home)
    with alone(home) as free:
        running = not free
    found: list[dict[str, Any]] = []
    for one in Journal(home).claims()[-50:]:
        order = one.order()
        state = "delivered" if one.done else one.state()
        ended = (one.result() or {}).get("status")
        found.append(
            {"job_id": one.job_id, "fence": one.fence, "job_type": order["job_type"], "state": state, "status": ended}
        )
    told = {"host_id": config["host_id"], "name": config["name"], "server": config["server"], "running": running}
    if print_data(ctx.obj, {**told, "runs": found}):
        return
    print(
        f"host {config['name']} ({config['host_id']}) of {config['server']}: agent {'up' if running else 'not running'}"
    )
    print_table(
        ("job", "type", "state", "status"),
        ([one["job_id"], one["job_type"], one["state"], one["status"] or ""] for one in found),
    )


def read_config(home: Path) -> dict[str, str]:
    try:
        return dict(json.loads((home / "agent.json").read_bytes()))
    except (OSError, ValueError):
        fail(f"{home} is not paired yet: `rota agent pair --server URL --token T --dir {home}`", Exit.NOT_FOUND)
