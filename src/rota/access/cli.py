"""`rota org …`, `rota user …`, `rota key …`, `rota session …`, `rota profile …`, `rota login` and `rota audit`."""

import json
import os
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Exit, fail, print_stderr, profiles_file, read_profiles
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.times import Since, Until, future_option

orgs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Keep teams apart.")
users = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="People of the org.")
keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="API keys of the org.")
sessions = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who is logged in to the dashboard.")
profiles = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Names for servers and keys, on this machine.")

Role = Annotated[str, typer.Option(help="viewer, operator or admin")]
UserId = Annotated[str, typer.Argument(help="id or e-mail address")]
ORG = ("id", "slug", "name", "shell", "max_running", "created_at")
USER = ("id", "email", "name", "role", "created_at", "updated_at")
KEY = ("id", "name", "key", "role", "scopes", "user_name", "created_at", "expires_at", "last_used_at", "revoked_at")


@orgs.command("add")
def add_org(
    ctx: typer.Context,
    slug: Annotated[str, typer.Argument(help="its short name: a-z, 0-9 and dashes")],
    name: Annotated[str | None, typer.Option(help="its name for people")] = None,
) -> None:
    """Make an org. Its admin key is told only now. Needs the first key of the installation."""
    print_details(
        ctx.obj, ctx.obj.post("/orgs", {"slug": slug, "name": name or slug}), ("id", "slug", "name", "admin_key")
    )


@orgs.command("list")
def list_orgs(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List orgs: one's own, or all of them with the first key of the installation."""
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
    print_list(ctx.obj, page, ("id", "slug", "name", "shell", "max running", "made"), rows)


@orgs.command("set")
def set_org(
    ctx: typer.Context,
    slug: Annotated[str, typer.Argument(help="its short name")],
    shell: Annotated[
        bool | None, typer.Option("--shell/--no-shell", help="whether its people may store and run commands")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option(help="the most jobs of it that run at once, or `none` for no limit")
    ] = None,
) -> None:
    """Change the rights and limits of an org. Needs the first key of the installation."""
    body: dict[str, Any] = {} if shell is None else {"shell": shell}
    if max_running is not None:
        try:
            body["max_running"] = None if max_running == "none" else int(max_running)
        except ValueError:
            fail(f"--max-running {max_running}: is neither a number nor `none`", Exit.USAGE)
    print_details(ctx.obj, ctx.obj.patch(f"/orgs/{quote(slug, safe='')}", body), ORG)


@users.command("add")
def add_user(
    ctx: typer.Context,
    email: Annotated[str, typer.Argument(help="e-mail address")],
    role: Role,
    password: Annotated[
        str, typer.Option(envvar="ROTA_PASSWORD", prompt=True, hide_input=True, confirmation_prompt=True)
    ],
    name: Annotated[str | None, typer.Option(help="else the address")] = None,
) -> None:
    """Make a user. The password is asked for, or taken from ROTA_PASSWORD."""
    body = {"email": email, "name": name, "role": role, "password": password}
    print_details(ctx.obj, ctx.obj.post("/users", body), USER)


@users.command("list")
def list_users(ctx: typer.Context, role: str | None = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the people of the org."""
    page = ctx.obj.get("/users", role=role, limit=limit, cursor=cursor)
    rows = ([one["id"], one["email"], one["name"], one["role"]] for one in page["items"])
    print_list(ctx.obj, page, ("id", "email", "name", "role"), rows)


@users.command("edit")
def edit_user(
    ctx: typer.Context,
    user: UserId,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    name: str | None = None,
    email: str | None = None,
    password: Annotated[bool, typer.Option("--password", help="ask for a new password")] = False,
) -> None:
    """Change a user."""
    body: dict[str, Any] = {"role": role, "name": name, "email": email}
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
    """Change your own password. Both are asked for, or taken from ROTA_PASSWORD and ROTA_NEW_PASSWORD."""
    ctx.obj.post("/users/me/$password", {"current_password": current, "new_password": new})
    print_stderr("your password is changed, and your login sessions have ended")


@users.command("rm")
def rm_user(ctx: typer.Context, user: UserId) -> None:
    """Take a user away, and revoke their keys."""
    ctx.obj.delete(f"/users/{user_id(ctx, user)}")
    print_stderr(f"user {user} is gone, with all their keys")


def user_id(ctx: typer.Context, key: str) -> str:
    found = ctx.obj.get("/users", email=key.lower())["items"] if "@" in key else []
    return str(found[0]["id"]) if found else quote(key, safe="")


@keys.command("add")
def add_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="what it is for")],
    role: Role,
    scope: Annotated[
        list[str] | None, typer.Option(help="such as runs:read, shell or host-shell; may be given several times")
    ] = None,
    expires_at: Annotated[str | None, future_option("--expires", help="when it ends: 30d, 2027-01-01, …")] = None,
) -> None:
    """Make a key. Its text is told only now."""
    body = {"name": name, "role": role, "scopes": scope or None, "expires_at": expires_at}
    print_details(ctx.obj, ctx.obj.post("/api-keys", body), KEY)


@keys.command("list")
def list_keys(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List keys, newest first."""
    page = ctx.obj.get("/api-keys", limit=limit, cursor=cursor)
    rows = (
        [one["id"], one["name"], one["role"], key_state(one), relative_time(one["last_used_at"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "role", "state", "used"), rows)


@keys.command("rm")
def rm_key(ctx: typer.Context, key_id: Annotated[str, typer.Argument(help="id")]) -> None:
    """Revoke a key."""
    ctx.obj.delete(f"/api-keys/{quote(key_id, safe='')}")
    print_stderr(f"key {key_id} is revoked")


def key_state(one: dict[str, Any]) -> str:
    if one["revoked_at"]:
        return "revoked"
    return f"until {relative_time(one['expires_at'])}" if one["expires_at"] else "good"


@sessions.command("list")
def list_sessions(
    ctx: typer.Context,
    user: Annotated[str | None, typer.Option(help="id or e-mail address; else all that you may see")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List who is logged in to the dashboard, newest first."""
    page = ctx.obj.get("/sessions", user_id=user_id(ctx, user) if user else None, limit=limit, cursor=cursor)
    rows = (
        [
            session["id"], session["user_name"], session["address"] or "-", relative_time(session["created_at"]),
            relative_time(session["last_used_at"]), relative_time(session["expires_at"]),
        ]
        for session in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("id", "user", "address", "began", "used", "ends"), rows)


@sessions.command("rm")
def rm_session(ctx: typer.Context, session_id: Annotated[str, typer.Argument(help="id")]) -> None:
    """End a login session at once."""
    ctx.obj.delete(f"/sessions/{quote(session_id, safe='')}")
    print_stderr(f"session {session_id} is ended")


def login(ctx: typer.Context) -> None:
    """Print a link that logs you in to the dashboard, once."""
    made = ctx.obj.post("/login-links")
    if not print_data(ctx.obj, made):
        print(made["url"])
        print_stderr(f"it works once, until {local_time(made['expires_at'])}")


def audit(
    ctx: typer.Context,
    action: Annotated[str | None, typer.Option(help="such as schedules.pause")] = None,
    resource: Annotated[str | None, typer.Option(help="such as schedules")] = None,
    resource_id: Annotated[str | None, typer.Option("--id", help="of the thing")] = None,
    user: Annotated[str | None, typer.Option(help="id or e-mail address")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """Who changed what, newest first."""
    page = ctx.obj.get(
        "/audit", action=action, resource=resource, resource_id=resource_id, since=since, until=until, limit=limit,
        user_id=user_id(ctx, user) if user else None, cursor=cursor,
    )  # fmt: skip
    rows = ([relative_time(one["at"]), one["user_name"] or "-", one["action"], of_what(one)] for one in page["items"])
    print_list(ctx.obj, page, ("at", "who", "what", "of"), rows)


def of_what(one: dict[str, Any]) -> str:
    """The thing by its name where the line has it, and the fields that changed; all of it is in `-o json`."""
    old, new = one["before"] or {}, one["after"] or {}
    name = one["resource_name"] or one["resource_id"] or ""
    changed = f": {', '.join(sorted({**old, **new}))}" if one["before"] and one["after"] else ""
    return f"{name}{changed}"


@profiles.command("set")
def set_profile(ctx: typer.Context, name: Annotated[str, typer.Argument()]) -> None:
    """Remember --server and --key of this command line under a name."""
    server, key = ctx.obj.address()
    write_profiles({**read_profiles(), name: {"server": server, "key": key}})
    print_stderr(f"profile {name} is in {profiles_file()}; use it with --profile {name} or ROTA_PROFILE={name}")


@profiles.command("list")
def list_profiles(ctx: typer.Context) -> None:
    """List profiles; keys are not shown."""
    items = [{"name": name, "server": one.get("server", "-")} for name, one in read_profiles().items()]
    page = {"items": items, "next_cursor": None}
    print_list(ctx.obj, page, ("name", "server"), ([one["name"], one["server"]] for one in items))


@profiles.command("rm")
def rm_profile(ctx: typer.Context, name: Annotated[str, typer.Argument()]) -> None:
    """Forget a profile."""
    known = read_profiles()
    if known.pop(name, None) is None:
        fail(f"profile {name!r} not found", Exit.NOT_FOUND)
    write_profiles(known)
    print_data(ctx.obj, {"name": name})


def write_profiles(known: dict[str, dict[str, str]]) -> None:
    path = profiles_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(known, file, indent=2)
    fresh.replace(path)
