"""`rota alarm …`"""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Exit, fail, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, set_fields, some_changes, with_fields
from rota.frame.cli.output import print_data, print_details, print_list, print_table, relative_time
from rota.frame.cli.run_results import find_run, wait_until_ended

app = command_group("Add, show, edit, test and acknowledge alarms.")
channels = command_group("Add, show, edit and test the channels through which alarms are sent.")
app.add_typer(channels, name="channel")

ALARM = (
    "name", "id", "when", "on", "notify", "quiet", "timezone", "group_seconds", "repeat_seconds", "enabled", "firing",
    "description", "source", "created_at", "updated_at",
)  # fmt: skip
CHANNEL = (
    "name", "id", "type", "address", "secret", "test_seconds", "last_delivery_at", "last_status", "last_answer",
    "source", "created_at", "updated_at",
)  # fmt: skip
EVENT = (
    "id", "alarm", "when", "name", "state", "text", "fired_at", "notified", "notified_at", "acknowledged_by",
    "acknowledged_at", "note", "resolved_at",
)  # fmt: skip
Name = Annotated[str, typer.Argument(help="name of the alarm", autocompletion=complete("alarms"))]
ChannelName = Annotated[str, typer.Argument(help="name of the channel", autocompletion=complete("alarm-channels"))]
Timeout = Annotated[float, typer.Option(help="seconds to wait for the receiver's answer")]


def seconds(text: str | None, option: str) -> int | None:
    """Return a span such as 1h in seconds. Exits with USAGE."""
    from rota.core.errors import Invalid
    from rota.core.timing.triggers import parse_interval

    try:
        return None if text is None else int(parse_interval(text, option).total_seconds())
    except Invalid as error:
        fail(error.message, Exit.USAGE)


def alarm_fields(
    on: Annotated[
        str | None,
        typer.Option(help="schedule:NAME, tag:NAME, KIND:TARGET, queue:NAME or host:NAME; default: the whole org"),
    ] = None,
    notify: Annotated[
        list[str] | None, typer.Option(help="name of a channel; repeatable", autocompletion=complete("alarm-channels"))
    ] = None,
    quiet: Annotated[str | None, typer.Option(help="local times without messages, such as 22:00-07:00")] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="time zone of the quiet hours")] = None,
    group: Annotated[str | None, typer.Option(help="wait so long for further events before a message: 2m")] = None,
    repeat: Annotated[str | None, typer.Option(help="repeat messages until acknowledged: 1h")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="whether it is evaluated")] = None,
    description: Annotated[str | None, typer.Option(help="description")] = None,
) -> Answer:
    """Return the fields of an alarm."""
    return set_fields(
        on=on,
        notify=notify or None,
        quiet=quiet,
        timezone=tz,
        group_seconds=seconds(group, "--group"),
        repeat_seconds=seconds(repeat, "--repeat"),
        enabled=enabled,
        description=description,
    )


def rule_field(
    when: Annotated[
        str | None, typer.Option(help="rule, such as 'late > 5m', missed or 'failed_in_a_row >= 3'")
    ] = None,
) -> Answer:
    return set_fields(when=when)


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List alarms by name."""
    page = ctx.obj.get("/alarms", limit=limit, cursor=cursor)
    rows = (
        [item["name"], item["when"], item["on"] or "", ", ".join(item["notify"]), str(item["firing"])]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("name", "when", "on", "notify", "firing"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show an alarm."""
    print_details(ctx.obj, ctx.obj.get(item_path("alarms", name)), ALARM)


@app.command()
@with_fields(rule_field, alarm_fields)
def add(ctx: typer.Context, fields: Answer, name: Annotated[str, typer.Argument(help="name of the alarm")]) -> None:
    """Add an alarm: `rota alarm add late --when "late > 5m" --on tag:nightly --notify ops`."""
    print_details(ctx.obj, ctx.obj.post("/alarms", {**fields, "name": name}), ALARM)


@app.command()
@with_fields(rule_field, alarm_fields)
def edit(ctx: typer.Context, fields: Answer, name: Name) -> None:
    """Change an alarm."""
    print_details(ctx.obj, ctx.obj.patch(item_path("alarms", name), some_changes(fields)), ALARM)


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete an alarm with its events."""
    ctx.obj.delete(item_path("alarms", name))
    print_stderr(f"alarm {name} deleted")


@app.command("test")
def send_test(ctx: typer.Context, name: Name, timeout: Timeout = 60) -> None:
    """Send a test message to each channel of an alarm, and show the answers of the receivers."""
    show_deliveries(ctx, ctx.obj.post(item_path("alarms", name, "$test"), {}), timeout)


@app.command(reads=True)
def events(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="firing, acknowledged or resolved")] = None,
    alarm: Annotated[str | None, typer.Option(help="name of the alarm", autocompletion=complete("alarms"))] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List alarm events, newest first."""
    page = ctx.obj.get("/alarm-events", state=state, alarm=alarm, limit=limit, cursor=cursor)
    rows = (
        [item["id"], item["alarm"], item["state"], f"{item['name']} {item['text']}", relative_time(item["fired_at"])]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("id", "alarm", "state", "event", "fired"), rows)


@app.command()
def ack(
    ctx: typer.Context,
    event_id: Annotated[
        str, typer.Argument(help="id of the alarm event", autocompletion=complete("alarm-events", "id"))
    ],
    note: Annotated[str | None, typer.Option(help="what is being done")] = None,
) -> None:
    """Acknowledge an alarm event in your name: it is not repeated."""
    path = item_path("alarm-events", event_id, "$acknowledge")
    print_details(ctx.obj, ctx.obj.post(path, set_fields(note=note)), EVENT)


def channel_fields(
    secret: Annotated[
        str | None, typer.Option(help="key of a webhook's signatures, whsec_…; default: a new one")
    ] = None,
    test_every: Annotated[str | None, typer.Option(help="send a test message so often: 1d")] = None,
) -> Answer:
    """Return the fields of a channel."""
    return set_fields(secret=secret, test_seconds=seconds(test_every, "--test-every"))


def address_field(
    address: Annotated[
        str | None, typer.Option(help="e-mail address, URL of a webhook, URL of Apprise, or a command")
    ] = None,
) -> Answer:
    return set_fields(address=address)


def type_field(type: Annotated[str | None, typer.Option(help="email, webhook, apprise or command")] = None) -> Answer:
    return set_fields(type=type)


@channels.command("list", reads=True)
def list_channels(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List channels by name, with their last delivery."""
    page = ctx.obj.get("/alarm-channels", limit=limit, cursor=cursor)
    rows = (
        [item["name"], item["type"], item["address"], item["last_status"] or "", item["last_answer"] or ""]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("name", "type", "address", "last delivery", "answer"), rows)


@channels.command("show", reads=True)
def show_channel(ctx: typer.Context, name: ChannelName) -> None:
    """Show a channel; its secret is never shown."""
    print_details(ctx.obj, ctx.obj.get(item_path("alarm-channels", name)), CHANNEL)


@channels.command("add")
@with_fields(type_field, address_field, channel_fields)
def add_channel(
    ctx: typer.Context, fields: Answer, name: Annotated[str, typer.Argument(help="name of the channel")]
) -> None:
    """Add a channel. Prints the key of a webhook's signatures, which is shown only once."""
    print_details(ctx.obj, ctx.obj.post("/alarm-channels", {**fields, "name": name}), CHANNEL)


@channels.command("edit")
@with_fields(address_field, channel_fields)
def edit_channel(ctx: typer.Context, fields: Answer, name: ChannelName) -> None:
    """Change a channel."""
    print_details(ctx.obj, ctx.obj.patch(item_path("alarm-channels", name), some_changes(fields)), CHANNEL)


@channels.command("rm")
def remove_channel(ctx: typer.Context, name: ChannelName) -> None:
    """Delete a channel that no alarm uses."""
    ctx.obj.delete(item_path("alarm-channels", name))
    print_stderr(f"alarm channel {name} deleted")


@channels.command("test")
def send_channel_test(ctx: typer.Context, name: ChannelName, timeout: Timeout = 60) -> None:
    """Send a test message through a channel, and show the answer of the receiver."""
    show_deliveries(ctx, ctx.obj.post(item_path("alarm-channels", name, "$test"), {}), timeout)


def show_deliveries(ctx: typer.Context, answer: Answer, timeout: float) -> None:
    """Wait for deliveries and print the answers of the receivers. Exits with RUN_FAILED if one failed."""
    if not answer["job_ids"]:
        fail("the alarm has no channel: give it one with `rota alarm edit NAME --notify CHANNEL`", Exit.USAGE)
    ended = [find_run(ctx.obj, wait_until_ended(ctx.obj, job_id, timeout)["id"]) for job_id in answer["job_ids"]]
    if not print_data(ctx.obj, ended):
        answers = [(run["outcome"] or {}).get("answer") or (run["error"] or {}).get("message") or "" for run in ended]
        rows = ([run["target"], run["status"], text] for run, text in zip(ended, answers, strict=True))
        print_table(("channel", "status", "answer"), rows)
    if any(run["status"] != "success" for run in ended):
        raise typer.Exit(Exit.RUN_FAILED)
