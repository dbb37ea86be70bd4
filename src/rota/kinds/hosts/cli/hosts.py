"""`rota host …`, `rota server-instance …`, `rota host-job …` and `rota batch …`"""

from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Exit, fail, print_stderr
from rota.frame.cli.options import (
    Cursor,
    Limit,
    command_group,
    read_input,
    read_pairs,
    set_fields,
    some_changes,
    with_fields,
)  # fmt: skip
from rota.frame.cli.output import print_data, print_details, print_list, print_table, relative_time
from rota.frame.cli.schedule_options import retry_fields

app = command_group("List, pair, change and remove hosts (machines with an agent).")
servers = command_group("List, add, change and remove server instances on hosts.")
jobs = command_group("Run, list and cancel jobs on hosts.")
batches = command_group("Run one job on several servers.")

Host = Annotated[str, typer.Argument(help="id or name of the host", autocompletion=complete("hosts"))]
HostOption = Annotated[str | None, typer.Option(help="id or name of the host", autocompletion=complete("hosts"))]
SERVER = "id or name of the server instance"
ServerId = Annotated[str, typer.Argument(help=SERVER, autocompletion=complete("server-instances"))]
ServerOption = Annotated[str | None, typer.Option(help=SERVER, autocompletion=complete("server-instances"))]
JobId = Annotated[str, typer.Argument(help="id of the job")]
JobType = Annotated[str, typer.Argument(help="job type that its agent knows, such as shell")]
BatchId = Annotated[str, typer.Argument(help="id of the batch")]
Label = Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE; repeatable, replaces all labels")]
NewName = Annotated[str | None, typer.Option("--name", help="new name")]
SERVER_FIELDS = ("id", "name", "type", "host_id", "labels", "config")
JOB_FIELDS = (
    "id", "status", "waits_for", "target_name", "server_instance_id", "job_type", "payload", "attempt", "error",
    "run_ids",
)  # fmt: skip
HOST_FIELDS = (
    "id", "name", "status", "labels", "agent_version", "key_version", "servers", "last_heartbeat_at", "metrics",
    "job_types", "created_at",
)  # fmt: skip


@app.command("list", reads=True)
def list_hosts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List hosts by name."""
    page = ctx.obj.get("/hosts", limit=limit, cursor=cursor)
    rows = (
        [host["id"], host["name"], host["status"], relative_time(host["last_heartbeat_at"]), str(host["servers"])]
        for host in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "status", "heard", "servers"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, host: Host) -> None:
    """Show a host."""
    print_details(ctx.obj, ctx.obj.get(path("hosts", host)), HOST_FIELDS)


@app.command()
def edit(ctx: typer.Context, host: Host, name: NewName = None, label: Label = None) -> None:
    """Change name or labels of a host."""
    changes = some_changes(set_fields(name=name, labels=read_pairs(label, "--label")))
    print_details(ctx.obj, ctx.obj.patch(path("hosts", host), changes), HOST_FIELDS)


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


@servers.command("list", reads=True)
def list_servers(
    ctx: typer.Context,
    host: HostOption = None,
    server_type: Annotated[str | None, typer.Option("--type", help="type, such as postgres")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List server instances."""
    page = ctx.obj.get("/server-instances", host_id=host, type=server_type, limit=limit, cursor=cursor)
    rows = (
        [server["id"], server["name"], server["type"], labels_of(server), server["host_id"]] for server in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "type", "labels", "host"), rows)


@servers.command("show", reads=True)
def show_server(ctx: typer.Context, server: ServerId) -> None:
    """Show a server instance."""
    print_details(ctx.obj, ctx.obj.get(path("server-instances", server)), SERVER_FIELDS)


def server_fields(
    server_type: Annotated[str | None, typer.Option("--type", help="type, such as postgres; default: server")] = None,
    config: Annotated[str | None, typer.Option(help="JSON for its agent, or @file")] = None,
    label: Label = None,
) -> Answer:
    return set_fields(type=server_type, config=read_input(config, "--config"), labels=read_pairs(label, "--label"))


@servers.command("add")
@with_fields(server_fields)
def add_server(ctx: typer.Context, name: str, fields: Answer, host: HostOption = None) -> None:
    """Add a server instance to a host."""
    body = {"type": "server", **fields, "name": name, **set_fields(host_id=host)}
    if "host_id" not in body:
        fail("--host is missing: the host on which the server runs; `rota host list` lists hosts", Exit.USAGE)
    print_details(ctx.obj, ctx.obj.post("/server-instances", body), SERVER_FIELDS)


@servers.command("edit")
@with_fields(server_fields)
def edit_server(ctx: typer.Context, server: ServerId, fields: Answer, name: NewName = None) -> None:
    """Change the fields given by options or a file; the others stay."""
    changes = some_changes({**fields, **set_fields(name=name)})
    print_details(ctx.obj, ctx.obj.patch(path("server-instances", server), changes), SERVER_FIELDS)


@servers.command("rm")
def delete_server(ctx: typer.Context, server: ServerId) -> None:
    """Delete a server instance."""
    ctx.obj.delete(path("server-instances", server))


def order_fields(
    payload: Annotated[str | None, typer.Option(help="JSON, or @file")] = None,
    timeout: Annotated[int | None, typer.Option(help="maximum duration of a run, in seconds")] = None,
) -> Answer:
    return set_fields(payload=read_input(payload, "--payload"), timeout_seconds=timeout)


@jobs.command("run")
@with_fields(order_fields, retry_fields)
def run_job(ctx: typer.Context, server: ServerId, job_type: JobType, fields: Answer) -> None:
    """Run a job on a server now."""
    body = {"payload": {}, **fields, "server_instance_id": server, "job_type": job_type}
    print_details(ctx.obj, ctx.obj.post("/host-jobs", body), ("job_id",))


@jobs.command("list", reads=True)
def list_jobs(
    ctx: typer.Context,
    server: ServerOption = None,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, …")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List host jobs, newest first."""
    page = ctx.obj.get("/host-jobs", server_instance_id=server, status=status, limit=limit, cursor=cursor)
    rows = ([job["id"], job["target_name"], job["status"], relative_time(job["submitted_at"])] for job in page["items"])
    print_list(ctx.obj, page, ("id", "server", "status", "asked"), rows)


@jobs.command("show", reads=True)
def show_job(ctx: typer.Context, job: JobId) -> None:
    """Show a host job."""
    print_details(ctx.obj, ctx.obj.get(path("host-jobs", job)), JOB_FIELDS)


@jobs.command("cancel")
def cancel_job(ctx: typer.Context, job: JobId) -> None:
    """Cancel a host job."""
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$cancel"), ("job_id",))


@jobs.command("resolve")
def resolve_job(
    ctx: typer.Context,
    job: JobId,
    resolution: Annotated[str, typer.Argument(help="applied or not_applied")],
    result: Annotated[str | None, typer.Option(help="result of an applied job: JSON, or @file")] = None,
) -> None:
    """Resolve a job that waits for reconciliation, because its agent was lost."""
    body = {"resolution": resolution, **set_fields(result=read_input(result, "--result"))}
    print_details(ctx.obj, ctx.obj.post(f"{path('host-jobs', job)}/$resolve", body), ("job_id",))


@batches.command("run")
@with_fields(order_fields, retry_fields)
def run_batch(
    ctx: typer.Context,
    job_type: JobType,
    fields: Answer,
    server: Annotated[
        list[str] | None,
        typer.Option(help=f"{SERVER}; repeatable", autocompletion=complete("server-instances")),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="servers with this label, NAME=VALUE; repeatable")] = None,
    max_parallel: Annotated[int | None, typer.Option(help="maximum concurrent jobs")] = None,
    stop_on_failure: Annotated[
        bool | None, typer.Option("--stop-on-failure", help="start no more jobs after a failure")
    ] = None,
) -> None:
    """Run the same job on several servers."""
    selected = set_fields(
        server_instance_ids=server or None,
        labels=read_pairs(label, "--label"),
        max_parallel=max_parallel,
        stop_on_failure=stop_on_failure,
    )
    print_details(ctx.obj, ctx.obj.post("/batches", {**fields, "job_type": job_type, **selected}), ("batch_id",))


@batches.command("list", reads=True)
def list_batches(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List batches, newest first."""
    page = ctx.obj.get("/batches", limit=limit, cursor=cursor)
    rows = ([batch["id"], batch["job_type"], batch["status"], done_of(batch)] for batch in page["items"])
    print_list(ctx.obj, page, ("id", "type", "status", "done"), rows)


@batches.command("show", reads=True)
def show_batch(ctx: typer.Context, batch: BatchId) -> None:
    """Show a batch with its members."""
    record = ctx.obj.get(path("batches", batch))
    print_details(
        ctx.obj, record, ("id", "target", "job_type", "status", "total", "succeeded", "failed", "canceled", "skipped")
    )
    if ctx.obj.for_people:
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


def labels_of(server: Answer) -> str:
    return ",".join(f"{name}={value}" for name, value in server["labels"].items())


def done_of(batch: Answer) -> str:
    return f"{batch['succeeded']} of {batch['total']}" + (f", {batch['failed']} failed" if batch["failed"] else "")
