"""`rota org …`, `rota user …`, `rota key …`, `rota session …`, `rota profile …`, `rota login` and `rota audit`."""

import json
import os
from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Answer, Exit, fail, item_path, print_stderr, profiles_file, read_profiles
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.times import Since, Until, future_option

orgs = command_group("Create, list and change orgs.")
users = command_group("Create, list, change and delete users of the org.")
keys = command_group("Create, list and revoke API keys of the org.")
sessions = command_group("List and end login sessions of the dashboard.")
profiles = command_group("Named servers and keys, stored on this machine.")

Role = Annotated[str, typer.Option(help="viewer, operator or admin")]
UserId = Annotated[str, typer.Argument(help="id or e-mail address of the user")]
ORG = ("id", "slug", "name", "shell", "max_running", "created_at")
USER = ("id", "email", "name", "role", "created_at", "updated_at")
KEY = ("id", "name", "key", "role", "scopes", "user_name", "created_at", "expires_at", "last_used_at", "revoked_at")


@orgs.command("add")
def add_org(
    ctx: typer.Context,
    slug: Annotated[str, typer.Argument(help="short name: a-z, 0-9 and dashes")],
    name: Annotated[str | None, typer.Option(help="display name; default: the slug")] = None,
) -> None:
    """Create an org. Prints its admin key, which is shown only once. Needs an instance admin key."""
    print_details(
        ctx.obj, ctx.obj.post("/orgs", {"slug": slug, "name": name or slug}), ("id", "slug", "name", "admin_key")
    )


@orgs.command("list")
def list_orgs(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List orgs: your own, or all with an instance admin key."""
    page = ctx.obj.get("/orgs", limit=limit, cursor=cursor)
    rows = (
        [
            org["id"],
            org["slug"],
            org["name"],
            "yes" if org["shell"] else "no",
            str(org["max_running"] or ""),
            relative_time(org["created_at"]),
        ]
        for org in page["items"]
    )
    print_list(ctx.obj, page, ("id", "slug", "name", "shell", "max running", "created"), rows)


@orgs.command("set")
def set_org(
    ctx: typer.Context,
    slug: Annotated[str, typer.Argument(help="slug of the org")],
    shell: Annotated[
        bool | None, typer.Option("--shell/--no-shell", help="whether its users may create and run shell tasks")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option(help="maximum concurrent runs of the org, or `none` to remove the limit")
    ] = None,
) -> None:
    """Change permissions and limits of an org. Needs an instance admin key."""
    body: dict[str, object] = {} if shell is None else {"shell": shell}
    if max_running is not None:
        try:
            body["max_running"] = None if max_running == "none" else int(max_running)
        except ValueError:
            fail(f"--max-running {max_running} is neither an integer nor `none`", Exit.USAGE)
    print_details(ctx.obj, ctx.obj.patch(item_path("orgs", slug), body), ORG)


@users.command("add")
def add_user(
    ctx: typer.Context,
    email: Annotated[str, typer.Argument(help="e-mail address")],
    role: Role,
    password: Annotated[
        str, typer.Option(envvar="ROTA_PASSWORD", prompt=True, hide_input=True, confirmation_prompt=True)
    ],
    name: Annotated[str | None, typer.Option(help="display name; default: the e-mail address")] = None,
) -> None:
    """Create a user. Prompts for the password unless ROTA_PASSWORD is set."""
    body = {"email": email, "name": name, "role": role, "password": password}
    print_details(ctx.obj, ctx.obj.post("/users", body), USER)


@users.command("list")
def list_users(
    ctx: typer.Context,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List the users of the org."""
    page = ctx.obj.get("/users", role=role, limit=limit, cursor=cursor)
    rows = ([user["id"], user["email"], user["name"], user["role"]] for user in page["items"])
    print_list(ctx.obj, page, ("id", "email", "name", "role"), rows)


@users.command("edit")
def edit_user(
    ctx: typer.Context,
    user: UserId,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    name: Annotated[str | None, typer.Option(help="display name")] = None,
    email: Annotated[str | None, typer.Option(help="e-mail address")] = None,
    password: Annotated[bool, typer.Option("--password", help="prompt for a new password")] = False,
) -> None:
    """Change a user."""
    body: dict[str, object] = {"role": role, "name": name, "email": email}
    if password:
        body["password"] = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    body = {field: value for field, value in body.items() if value is not None}
    print_details(ctx.obj, ctx.obj.patch(f"/users/{user_id(ctx, user)}", body), USER)


@users.command("password")
def change_password(
    ctx: typer.Context,
    current: Annotated[str, typer.Option(envvar="ROTA_PASSWORD", prompt="Current password", hide_input=True)],
    new: Annotated[
        str,
        typer.Option(
            envvar="ROTA_NEW_PASSWORD", prompt="New password", hide_input=True, confirmation_prompt="New password again"
        ),
    ],
) -> None:
    """Change your own password. Prompts for both unless ROTA_PASSWORD and ROTA_NEW_PASSWORD are set."""
    ctx.obj.post("/users/me/$password", {"current_password": current, "new_password": new})
    print_stderr("password changed; all your login sessions have ended")


@users.command("rm")
def rm_user(ctx: typer.Context, user: UserId) -> None:
    """Delete a user and revoke their API keys."""
    ctx.obj.delete(f"/users/{user_id(ctx, user)}")
    print_stderr(f"user {user} deleted, their API keys are revoked")


def user_id(ctx: typer.Context, key: str) -> str:
    matches = ctx.obj.get("/users", email=key.lower())["items"] if "@" in key else []
    return str(matches[0]["id"]) if matches else quote(key, safe="")


@keys.command("add")
def add_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the key, such as its purpose")],
    role: Role,
    scope: Annotated[
        list[str] | None, typer.Option(help="scope, such as runs:read, shell or host-shell; repeatable")
    ] = None,
    expires_at: Annotated[
        str | None, future_option("--expires", help="expiry: 30d (from now), 2027-01-01, …; default: never")
    ] = None,
) -> None:
    """Create an API key. Prints the key, which is shown only once."""
    body = {"name": name, "role": role, "scopes": scope or None, "expires_at": expires_at}
    print_details(ctx.obj, ctx.obj.post("/api-keys", body), KEY)


@keys.command("list")
def list_keys(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List API keys, newest first."""
    page = ctx.obj.get("/api-keys", limit=limit, cursor=cursor)
    rows = (
        [key["id"], key["name"], key["role"], key_state(key), relative_time(key["last_used_at"])]
        for key in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "role", "state", "last used"), rows)


@keys.command("rm")
def rm_key(ctx: typer.Context, key_id: Annotated[str, typer.Argument(help="id of the API key")]) -> None:
    """Revoke an API key."""
    ctx.obj.delete(item_path("api-keys", key_id))
    print_stderr(f"API key {key_id} revoked")


def key_state(key: Answer) -> str:
    if key["revoked_at"]:
        return "revoked"
    return f"until {relative_time(key['expires_at'])}" if key["expires_at"] else "valid"


@sessions.command("list")
def list_sessions(
    ctx: typer.Context,
    user: Annotated[
        str | None, typer.Option(help="id or e-mail address of a user; default: all sessions you may see")
    ] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List login sessions of the dashboard, newest first."""
    page = ctx.obj.get("/sessions", user_id=user_id(ctx, user) if user else None, limit=limit, cursor=cursor)
    rows = (
        [
            session["id"],
            session["user_name"],
            session["address"] or "-",
            relative_time(session["created_at"]),
            relative_time(session["last_used_at"]),
            relative_time(session["expires_at"]),
        ]
        for session in page["items"]
    )
    print_list(ctx.obj, page, ("id", "user", "address", "created", "last used", "expires"), rows)


@sessions.command("rm")
def rm_session(ctx: typer.Context, session_id: Annotated[str, typer.Argument(help="id of the login session")]) -> None:
    """End a login session."""
    ctx.obj.delete(item_path("sessions", session_id))
    print_stderr(f"session {session_id} has ended")


def login(ctx: typer.Context) -> None:
    """Print a login link to the dashboard. It works once."""
    link = ctx.obj.post("/login-links")
    if not print_data(ctx.obj, link):
        print(link["url"])
        print_stderr(f"the link works once, until {local_time(link['expires_at'])}")


def audit(
    ctx: typer.Context,
    action: Annotated[str | None, typer.Option(help="action, such as schedules.pause")] = None,
    resource: Annotated[str | None, typer.Option(help="type of resource, such as schedules")] = None,
    resource_id: Annotated[str | None, typer.Option("--id", help="id of the resource")] = None,
    user: Annotated[str | None, typer.Option(help="id or e-mail address of the user")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List the audit log, newest first: who changed what."""
    page = ctx.obj.get(
        "/audit",
        action=action,
        resource=resource,
        resource_id=resource_id,
        since=since,
        until=until,
        limit=limit,
        user_id=user_id(ctx, user) if user else None,
        cursor=cursor,
    )
    rows = (
        [relative_time(entry["at"]), entry["user_name"] or "-", entry["action"], resource_and_changes(entry)]
        for entry in page["items"]
    )
    print_list(ctx.obj, page, ("time", "user", "action", "resource"), rows)


def resource_and_changes(entry: Answer) -> str:
    """Return the name or id of an audit entry's resource and the names of the changed fields."""
    old, new = entry["before"] or {}, entry["after"] or {}
    name = entry["resource_name"] or entry["resource_id"] or ""
    changed = f": {', '.join(sorted({**old, **new}))}" if entry["before"] and entry["after"] else ""
    return f"{name}{changed}"


@profiles.command("set")
def set_profile(ctx: typer.Context, name: Annotated[str, typer.Argument(help="name of the profile")]) -> None:
    """Save --server and --key of this command line under a name."""
    server, key = ctx.obj.address()
    write_profiles({**read_profiles(), name: {"server": server, "key": key}})
    print_stderr(f"profile {name} saved in {profiles_file()}; use it with --profile {name} or ROTA_PROFILE={name}")


@profiles.command("list")
def list_profiles(ctx: typer.Context) -> None:
    """List profiles; keys are not shown."""
    items = [{"name": name, "server": profile.get("server", "-")} for name, profile in read_profiles().items()]
    page = {"items": items, "next_cursor": None}
    print_list(ctx.obj, page, ("name", "server"), ([profile["name"], profile["server"]] for profile in items))


@profiles.command("rm")
def rm_profile(ctx: typer.Context, name: Annotated[str, typer.Argument(help="name of the profile")]) -> None:
    """Delete a profile."""
    profiles = read_profiles()
    if profiles.pop(name, None) is None:
        fail(f"profile {name!r} not found", Exit.NOT_FOUND)
    write_profiles(profiles)
    print_data(ctx.obj, {"name": name})


def write_profiles(profiles: dict[str, dict[str, str]]) -> None:
    path = profiles_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(profiles, file, indent=2)
    temporary.replace(path)
