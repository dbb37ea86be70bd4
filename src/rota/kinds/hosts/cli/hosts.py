"""`rota host …`, `rota server-instance …`, `rota host-job …` and `rota batch …`"""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Exit, Output, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import print_data, print_details, print_list, print_table, relative_time

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Machines of the org, and their agents.")
servers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What runs on hosts.")
jobs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Jobs on hosts.")
batches = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="One job on many servers.")

Host = Annotated[str, typer.Argument(help="id or name of the host")]
ServerId = Annotated[str, typer.Argument(help="id or name of the server instance")]
JobId = Annotated[str, typer.Argument(help="id of the job")]
BatchId = Annotated[str, typer.Argument(help="id of the batch")]
Label = Annotated[list[str] | None, typer.Option("--label", help="k=v; may be given several times")]
Payload = Annotated[str | None, typer.Option(help="JSON")]
SHOWN = (
    "id", "name", "status", "labels", "agent_version", "key_version", "servers", "last_heartbeat_at", "metrics",
    "job_types", "created_at",
)  # fmt: skip


@app.command("list")
def list_hosts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List hosts by name."""
    page = ctx.obj.get("/hosts", limit=limit, cursor=cursor)
    rows = (
        [one["id"], one["name"], one["status"], relative_time(one["last_heartbeat_at"]), str(one["servers"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "status", "heard", "servers"), rows)


@app.command()
def show(ctx: typer.Context, host: Host) -> None:
    """Everything about one host."""
    print_details(ctx.obj, ctx.obj.get(path("hosts", host)), SHOWN)


@app.command()
def token(ctx: typer.Context, ttl: Annotated[int | None, typer.Option(help="seconds that it lasts")] = None) -> None:
    """Make a token that pairs one machine, once: `rota agent pair --token T` there."""
    made = ctx.obj.post("/pairing-tokens", {"ttl_seconds": ttl} if ttl else {})
    if not print_data(ctx.obj, made):
        print(made["token"])
        print_stderr(f"good until {made['expires_at']}; it is not shown again")


@app.command("rotate-key")
def rotate_key(ctx: typer.Context, host: Host) -> None:
    """A new key for a host's agent: give it to `rota agent key` there. The old one is dead at once."""
    made = ctx.obj.post(f"{path('hosts', host)}/$rotate-key")
    if not print_data(ctx.obj, made):
        print(made["agent_key"])


@app.command()
def rm(ctx: typer.Context, host: Host) -> None:
    """Take a host away that has no servers any more."""
    ctx.obj.delete(path("hosts", host))


@servers.command("list")
def list_servers(ctx: typer.Context, host: str | None = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List server instances."""
    page = ctx.obj.get("/server-instances", host_id=host, limit=limit, cursor=cursor)
    rows = ([one["id"], one["name"], one["type"], labels_of(one), one["host_id"]] for one in page["items"])
    print_list(ctx.obj, page, ("id", "name", "type", "labels", "host"), rows)


@servers.command("add")
def add_server(
    ctx: typer.Context,
    name: str,
    host: Annotated[str, typer.Option(help="id or name of its host")],
    type: str = "server",
    config: Annotated[str | None, typer.Option(help="JSON that its agent is given")] = None,
    label: Label = None,
) -> None:
    """Name something that runs on a host."""
    body = {"host_id": host, "name": name, "type": type, "labels": pairs(label)}
    made = ctx.obj.post("/server-instances", body | ({"config": read_json(config)} if config else {}))
    print_details(ctx.obj, made, ("id", "name", "type", "host_id", "labels", "config"))


@servers.command("rm")
def delete_server(ctx: typer.Context, server: ServerId) -> None:
    """Take a server instance away."""
    ctx.obj.delete(path("server-instances", server))


@jobs.command("run")
def run_job(ctx: typer.Context, server: ServerId, job_type: str, payload: Payload = None) -> None:
    """A job on a server, at once."""
    body = {"server_instance_id": server, "job_type": job_type, "payload": read_json(payload) if payload else {}}
    print_details(ctx.obj, ctx.obj.post("/host-jobs", body), ("job_id",))


@jobs.command("list")
def list_jobs(ctx: typer.Context, server: str | None = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """Jobs on hosts, newest first."""
    page = ctx.obj.get("/host-jobs", server_instance_id=server, limit=limit, cursor=cursor)
    rows = ([one["id"], one["target_name"], one["status"], relative_time(one["submitted_at"])] for one in page["items"])
    print_list(ctx.obj, page, ("id", "server", "status", "asked"), rows)


@jobs.command("show")
def show_job(ctx: typer.Context, job: JobId) -> None:
    """Everything about one job."""
    fields = (
        "id",
        "status",
        "waits_for",
        "target_name",
        "server_instance_id",
        "job_type",
        "payload",
        "attempt",
        "error",
        "run_ids",
    )
    print_details(ctx.obj, ctx.obj.get(path("host-jobs", job)), fields)


@jobs.command("cancel")
def cancel_job(ctx: typer.Context, job: JobId) -> None:
    """Stop a job."""
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$cancel"), ("job_id",))


@jobs.command("resolve")
def resolve_job(
    ctx: typer.Context, job: JobId, resolution: Annotated[str, typer.Argument(help="applied or not_applied")]
) -> None:
    """Say whether a job happened whose agent was lost and cannot tell."""
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$resolve", {"resolution": resolution}), ("job_id",))


@batches.command("run")
def run_batch(
    ctx: typer.Context,
    job_type: str,
    server: Annotated[
        list[str] | None, typer.Option(help="id or name of a server instance; may be given several times")
    ] = None,
    label: Label = None,
    payload: Payload = None,
    max_parallel: Annotated[int | None, typer.Option(help="how many at once")] = None,
    stop_on_failure: Annotated[bool, typer.Option("--stop-on-failure", help="begin no more once one failed")] = False,
) -> None:
    """The same job on many servers."""
    body: dict[str, Any] = {
        "job_type": job_type, "server_instance_ids": server, "labels": pairs(label) or None,
        "max_parallel": max_parallel, "payload": read_json(payload) if payload else None,
        "stop_on_failure": stop_on_failure,
    }  # fmt: skip
    print_details(ctx.obj, ctx.obj.post("/batches", {k: v for k, v in body.items() if v is not None}), ("batch_id",))


@batches.command("list")
def list_batches(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """Batches, newest first."""
    page = ctx.obj.get("/batches", limit=limit, cursor=cursor)
    rows = ([one["id"], one["job_type"], one["status"], done_of(one)] for one in page["items"])
    print_list(ctx.obj, page, ("id", "type", "status", "done"), rows)


@batches.command("show")
def show_batch(ctx: typer.Context, batch: BatchId) -> None:
    """One batch, server by server."""
    found = ctx.obj.get(path("batches", batch))
    print_details(
        ctx.obj, found, ("id", "target", "job_type", "status", "total", "succeeded", "failed", "canceled", "skipped")
    )
    if ctx.obj.output is Output.TABLE:
        print()
        print_table(
            ("server", "status", "job"), ([one["name"], one["status"], one["job_id"] or ""] for one in found["members"])
        )


@batches.command("cancel")
def cancel_batch(ctx: typer.Context, batch: BatchId) -> None:
    """Stop a batch."""
    print_details(ctx.obj, ctx.obj.post(f"{path('batches', batch)}/$cancel"), ("batch_id",))


def path(what: str, key: str) -> str:
    return f"/{what}/{quote(key, safe='')}"


def pairs(label: list[str] | None) -> dict[str, str]:
    parts = [one.partition("=") for one in label or ()]
    if not all(name and eq for name, eq, _ in parts):
        fail("a label is written k=v", Exit.USAGE)
    return {name: value for name, _, value in parts}


def labels_of(one: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in one["labels"].items())


def done_of(one: dict[str, Any]) -> str:
    return f"{one['succeeded']} of {one['total']}" + (f", {one['failed']} failed" if one["failed"] else "")


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"{text!r} is not JSON: {error}", Exit.USAGE)
