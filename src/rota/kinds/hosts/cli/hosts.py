"""`rota host …`, `rota server-instance …`, `rota host-job …` and `rota batch …`"""

import json
from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Answer, Exit, Output, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import print_data, print_details, print_list, print_table, relative_time

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, pair and remove hosts (machines with an agent)."
)
servers = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, add and remove server instances on hosts."
)
jobs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run, list and cancel jobs on hosts.")
batches = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run one job on several servers.")

Host = Annotated[str, typer.Argument(help="id or name of the host")]
ServerId = Annotated[str, typer.Argument(help="id or name of the server instance")]
JobId = Annotated[str, typer.Argument(help="id of the job")]
BatchId = Annotated[str, typer.Argument(help="id of the batch")]
Label = Annotated[list[str] | None, typer.Option("--label", help="k=v; repeatable")]
Payload = Annotated[str | None, typer.Option(help="JSON")]
HOST_FIELDS = (
    "id", "name", "status", "labels", "agent_version", "key_version", "servers", "last_heartbeat_at", "metrics",
    "job_types", "created_at",
)  # fmt: skip


@app.command("list")
def list_hosts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List hosts by name."""
    page = ctx.obj.get("/hosts", limit=limit, cursor=cursor)
    rows = (
        [host["id"], host["name"], host["status"], relative_time(host["last_heartbeat_at"]), str(host["servers"])]
        for host in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "status", "heard", "servers"), rows)


@app.command()
def show(ctx: typer.Context, host: Host) -> None:
    """Show a host."""
    print_details(ctx.obj, ctx.obj.get(path("hosts", host)), HOST_FIELDS)


@app.command()
def token(ctx: typer.Context, ttl: Annotated[int | None, typer.Option(help="seconds until it expires")] = None) -> None:
    """Create a token that pairs one machine: `rota agent pair --token T` there."""
    created = ctx.obj.post("/pairing-tokens", {"ttl_seconds": ttl} if ttl else {})
    if not print_data(ctx.obj, created):
        print(created["token"])
        print_stderr(f"valid until {created['expires_at']}; it is not shown again")


@app.command("rotate-key")
def rotate_key(ctx: typer.Context, host: Host) -> None:
    """Replace the key of a host; pass the new one to `rota agent key` there. The old one is invalid at once."""
    created = ctx.obj.post(f"{path('hosts', host)}/$rotate-key")
    if not print_data(ctx.obj, created):
        print(created["agent_key"])


@app.command()
def rm(ctx: typer.Context, host: Host) -> None:
    """Delete a host that has no server instances."""
    ctx.obj.delete(path("hosts", host))


@servers.command("list")
def list_servers(ctx: typer.Context, host: str | None = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List server instances."""
    page = ctx.obj.get("/server-instances", host_id=host, limit=limit, cursor=cursor)
    rows = (
        [server["id"], server["name"], server["type"], labels_of(server), server["host_id"]] for server in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "type", "labels", "host"), rows)


@servers.command("add")
def add_server(
    ctx: typer.Context,
    name: str,
    host: Annotated[str, typer.Option(help="id or name of its host")],
    type: str = "server",
    config: Annotated[str | None, typer.Option(help="JSON for its agent")] = None,
    label: Label = None,
) -> None:
    """Add a server instance to a host."""
    body = {"host_id": host, "name": name, "type": type, "labels": pairs(label)}
    server = ctx.obj.post("/server-instances", body | ({"config": read_json(config)} if config else {}))
    print_details(ctx.obj, server, ("id", "name", "type", "host_id", "labels", "config"))


@servers.command("rm")
def delete_server(ctx: typer.Context, server: ServerId) -> None:
    """Delete a server instance."""
    ctx.obj.delete(path("server-instances", server))


@jobs.command("run")
def run_job(ctx: typer.Context, server: ServerId, job_type: str, payload: Payload = None) -> None:
    """Run a job on a server now."""
    body = {"server_instance_id": server, "job_type": job_type, "payload": read_json(payload) if payload else {}}
    print_details(ctx.obj, ctx.obj.post("/host-jobs", body), ("job_id",))


@jobs.command("list")
def list_jobs(ctx: typer.Context, server: str | None = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List host jobs, newest first."""
    page = ctx.obj.get("/host-jobs", server_instance_id=server, limit=limit, cursor=cursor)
    rows = ([job["id"], job["target_name"], job["status"], relative_time(job["submitted_at"])] for job in page["items"])
    print_list(ctx.obj, page, ("id", "server", "status", "asked"), rows)


@jobs.command("show")
def show_job(ctx: typer.Context, job: JobId) -> None:
    """Show a host job."""
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
    """Cancel a host job."""
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$cancel"), ("job_id",))


@jobs.command("resolve")
def resolve_job(
    ctx: typer.Context, job: JobId, resolution: Annotated[str, typer.Argument(help="applied or not_applied")]
) -> None:
    """Resolve a job that waits for reconciliation, because its agent was lost."""
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$resolve", {"resolution": resolution}), ("job_id",))


@batches.command("run")
def run_batch(
    ctx: typer.Context,
    job_type: str,
    server: Annotated[list[str] | None, typer.Option(help="id or name of a server instance; repeatable")] = None,
    label: Label = None,
    payload: Payload = None,
    max_parallel: Annotated[int | None, typer.Option(help="maximum concurrent jobs")] = None,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="start no more jobs after a failure")
    ] = False,
) -> None:
    """Run the same job on several servers."""
    body: Answer = {
        "job_type": job_type,
        "server_instance_ids": server,
        "labels": pairs(label) or None,
        "max_parallel": max_parallel,
        "payload": read_json(payload) if payload else None,
        "stop_on_failure": stop_on_failure,
    }
    print_details(ctx.obj, ctx.obj.post("/batches", {k: v for k, v in body.items() if v is not None}), ("batch_id",))


@batches.command("list")
def list_batches(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List batches, newest first."""
    page = ctx.obj.get("/batches", limit=limit, cursor=cursor)
    rows = ([batch["id"], batch["job_type"], batch["status"], done_of(batch)] for batch in page["items"])
    print_list(ctx.obj, page, ("id", "type", "status", "done"), rows)


@batches.command("show")
def show_batch(ctx: typer.Context, batch: BatchId) -> None:
    """Show a batch with its members."""
    record = ctx.obj.get(path("batches", batch))
    print_details(
        ctx.obj, record, ("id", "target", "job_type", "status", "total", "succeeded", "failed", "canceled", "skipped")
    )
    if ctx.obj.output is Output.TABLE:
        print()
        print_table(
            ("server", "status", "job"),
            ([member["name"], member["status"], member["job_id"] or ""] for member in record["members"]),
        )


@batches.command("cancel")
def cancel_batch(ctx: typer.Context, batch: BatchId) -> None:
    """Cancel a batch."""
    print_details(ctx.obj, ctx.obj.post(f"{path('batches', batch)}/$cancel"), ("batch_id",))


def path(collection: str, key: str) -> str:
    return f"/{collection}/{quote(key, safe='')}"


def pairs(label: list[str] | None) -> dict[str, str]:
    parts = [text.partition("=") for text in label or ()]
    if not all(name and eq for name, eq, _ in parts):
        fail("--label needs k=v", Exit.USAGE)
    return {name: value for name, _, value in parts}


def labels_of(server: Answer) -> str:
    return ",".join(f"{name}={value}" for name, value in server["labels"].items())


def done_of(batch: Answer) -> str:
    return f"{batch['succeeded']} of {batch['total']}" + (f", {batch['failed']} failed" if batch["failed"] else "")


def read_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"{text!r} is not JSON: {error}", Exit.USAGE)
