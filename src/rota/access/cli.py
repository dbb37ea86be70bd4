"""Commands for orgs, users, service accounts, keys, login sessions, logins and the audit log."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Exit, fail, id_by_name, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.times import Since, Until, future_option

orgs = command_group("Create, list and change orgs.")
users = command_group("Create, list, change and delete users of the org.")
keys = command_group("Create, list and revoke API keys of the org.")
service_accounts = command_group("Create, list, change and delete service accounts of the org.")
sessions = command_group("List and end login sessions of the dashboard.")

Role = Annotated[str, typer.Option(help="viewer, operator or admin")]
UserId = Annotated[
    str, typer.Argument(help="id or e-mail address of the user", autocompletion=complete("users", "email"))
]
AccountId = Annotated[
    str, typer.Argument(help="id or name of the service account", autocompletion=complete("service-accounts"))
]
Scope = Annotated[list[str] | None, typer.Option(help="scope, such as runs:read, shell or host-shell; repeatable")]
Disabled = Annotated[
    bool | None, typer.Option("--disabled/--enabled", help="refuse logins and API keys, or allow them")
]
KeyId = Annotated[str, typer.Argument(help="id or name of the API key", autocompletion=complete("api-keys"))]
ORG = ("id", "slug", "name", "shell", "max_running", "created_at")
USER = ("id", "email", "name", "role", "disabled", "disabled_by", "oidc_subject", "created_at", "updated_at")
SERVICE_ACCOUNT = ("id", "name", "role", "scopes", "disabled", "created_at", "updated_at")
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


@orgs.command("list", reads=True)
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
        str,
        typer.Option(
            help="initial password", envvar="ROTA_PASSWORD", prompt=True, hide_input=True, confirmation_prompt=True
        ),
    ],
    name: Annotated[str | None, typer.Option(help="display name; default: the e-mail address")] = None,
) -> None:
    """Create a user. Prompts for the password unless ROTA_PASSWORD is set."""
    body = {"email": email, "name": name, "role": role, "password": password}
    print_details(ctx.obj, ctx.obj.post("/users", body), USER)


@users.command("list", reads=True)
def list_users(
    ctx: typer.Context,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List the users of the org."""
    page = ctx.obj.get("/users", role=role, limit=limit, cursor=cursor)
    rows = (
        [user["id"], user["email"] or "-", user["name"], user["role"], "disabled" if user["disabled"] else "active"]
        for user in page["items"]
    )
    print_list(ctx.obj, page, ("id", "email", "name", "role", "state"), rows)


@users.command("show", reads=True)
def show_user(ctx: typer.Context, user: UserId) -> None:
    """Show a user."""
    print_details(ctx.obj, ctx.obj.get(item_path("users", user_id(ctx, user))), USER)


@users.command("edit")
def edit_user(
    ctx: typer.Context,
    user: UserId,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    name: Annotated[str | None, typer.Option(help="display name")] = None,
    email: Annotated[str | None, typer.Option(help="e-mail address")] = None,
    password: Annotated[bool, typer.Option("--password", help="prompt for a new password")] = False,
    disabled: Disabled = None,
    oidc_subject: Annotated[
        str | None, typer.Option(help="subject at the provider that signs in as this user; empty: none")
    ] = None,
) -> None:
    """Change a user."""
    new_password = typer.prompt("Password", hide_input=True, confirmation_prompt=True) if password else None
    changes = {"role": role, "name": name, "email": email, "disabled": disabled, "oidc_subject": oidc_subject}
    change(ctx, item_path("users", user_id(ctx, user)), USER, {**changes, "password": new_password})


@users.command("password")
def change_password(
    ctx: typer.Context,
    current: Annotated[
        str, typer.Option(envvar="ROTA_PASSWORD", prompt="Current password", hide_input=True, help="current password")
    ],
    new: Annotated[
        str,
        typer.Option(
            envvar="ROTA_NEW_PASSWORD",
            prompt="New password",
            hide_input=True,
            confirmation_prompt="New password again",
            help="new password",
        ),
    ],
) -> None:
    """Change your own password. Prompts for both unless ROTA_PASSWORD and ROTA_NEW_PASSWORD are set."""
    ctx.obj.post("/users/me/$password", {"current_password": current, "new_password": new})
    print_stderr("password changed; all your login sessions have ended")


@users.command("rm")
def rm_user(ctx: typer.Context, user: UserId) -> None:
    """Delete a user and revoke their API keys."""
    ctx.obj.delete(item_path("users", user_id(ctx, user)))
    print_stderr(f"user {user} deleted, their API keys are revoked")


def user_id(ctx: typer.Context, key: str) -> str:
    """Return the id of the user with this e-mail address, else the argument."""
    email = key.lower()
    return id_by_name(ctx.obj, "/users", "users", email, emails, email=email) if "@" in key else key


def emails(user: Answer) -> tuple[object, ...]:
    return (user["email"],)


def names(item: Answer) -> tuple[object, ...]:
    return (item["name"],)


def change(ctx: typer.Context, path: str, shown: Sequence[str], changes: Mapping[str, object]) -> None:
    """Send the changes that are not None, and print the changed item."""
    body = {field: value for field, value in changes.items() if value is not None}
    print_details(ctx.obj, ctx.obj.patch(path, body), shown)


@service_accounts.command("add")
def add_service_account(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the service account, such as the program that uses it")],
    role: Role,
    scope: Scope = None,
) -> None:
    """Create a service account. `rota key add --service-account` creates its API keys."""
    body = {"name": name, "role": role, "scopes": scope or None}
    print_details(ctx.obj, ctx.obj.post("/service-accounts", body), SERVICE_ACCOUNT)


@service_accounts.command("list", reads=True)
def list_service_accounts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the service accounts of the org."""
    page = ctx.obj.get("/service-accounts", limit=limit, cursor=cursor)
    rows = (
        [
            account["id"],
            account["name"],
            account["role"],
            ", ".join(account["scopes"]),
            "disabled" if account["disabled"] else "active",
        ]
        for account in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "role", "scopes", "state"), rows)


@service_accounts.command("show", reads=True)
def show_service_account(ctx: typer.Context, account: AccountId) -> None:
    """Show a service account."""
    print_details(ctx.obj, ctx.obj.get(item_path("service-accounts", account_id(ctx, account))), SERVICE_ACCOUNT)


@service_accounts.command("edit")
def edit_service_account(
    ctx: typer.Context,
    account: AccountId,
    name: Annotated[str | None, typer.Option(help="new name")] = None,
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin")] = None,
    scope: Scope = None,
    no_scopes: Annotated[bool, typer.Option("--no-scopes", help="remove all scopes: its role alone limits it")] = False,
    disabled: Disabled = None,
) -> None:
    """Change a service account. A lower role and fewer scopes also apply to its API keys."""
    if scope and no_scopes:
        fail("--scope and --no-scopes exclude each other", Exit.USAGE)
    scopes = [] if no_scopes else scope or None
    changes = {"name": name, "role": role, "scopes": scopes, "disabled": disabled}
    change(ctx, item_path("service-accounts", account_id(ctx, account)), SERVICE_ACCOUNT, changes)


@service_accounts.command("rm")
def rm_service_account(ctx: typer.Context, account: AccountId) -> None:
    """Delete a service account; revokes its API keys and grants."""
    ctx.obj.delete(item_path("service-accounts", account_id(ctx, account)))
    print_stderr(f"service account {account} deleted, its API keys and grants are revoked")


def account_id(ctx: typer.Context, key: str) -> str:
    """Return the id of the service account with this name, else the argument."""
    return id_by_name(ctx.obj, "/service-accounts", "service accounts", key, names, name=key)


@keys.command("add")
def add_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the key, such as its purpose")],
    role: Role,
    scope: Scope = None,
    service_account: Annotated[
        str | None, typer.Option(help="id or name of the service account that the key acts for; default: you")
    ] = None,
    expires_at: Annotated[
        str | None, future_option("--expires", help="expiry: 30d (from now), 2027-01-01, …; default: never")
    ] = None,
) -> None:
    """Create an API key. Prints the key, which is shown only once."""
    account = None if service_account is None else account_id(ctx, service_account)
    body = {"name": name, "role": role, "scopes": scope or None, "expires_at": expires_at, "user_id": account}
    print_details(ctx.obj, ctx.obj.post("/api-keys", body), KEY)


@keys.command("list", reads=True)
def list_keys(
    ctx: typer.Context,
    user: Annotated[str | None, typer.Option(help="id or e-mail address of the user")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List API keys, newest first."""
    page = ctx.obj.get("/api-keys", user_id=user_id(ctx, user) if user else None, limit=limit, cursor=cursor)
    rows = (
        [key["id"], key["name"], key["role"], key_state(key), relative_time(key["last_used_at"])]
        for key in page["items"]
    )
    print_list(ctx.obj, page, ("id", "name", "role", "state", "last used"), rows)


@keys.command("show", reads=True)
def show_key(ctx: typer.Context, key: KeyId) -> None:
    """Show an API key, without the key itself."""
    print_details(ctx.obj, ctx.obj.get(item_path("api-keys", key_id(ctx, key))), KEY)


@keys.command("rm")
def rm_key(ctx: typer.Context, key: KeyId) -> None:
    """Revoke an API key."""
    ctx.obj.delete(item_path("api-keys", key_id(ctx, key)))
    print_stderr(f"API key {key} revoked")


def key_id(ctx: typer.Context, key: str) -> str:
    """Return the id of the valid API key with this name, else the argument. Exits with CONFLICT if there are more."""
    return id_by_name(ctx.obj, "/api-keys", "API keys", key, lambda item: () if item["revoked_at"] else names(item))


def key_state(key: Answer) -> str:
    if key["revoked_at"]:
        return "revoked"
    return f"until {relative_time(key['expires_at'])}" if key["expires_at"] else "valid"


@sessions.command("list", reads=True)
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
            session["method"] or "-",
            session["device"] or "-",
            session["address"] or "-",
            relative_time(session["created_at"]),
            relative_time(session["last_used_at"]),
            relative_time(session["expires_at"]),
        ]
        for session in page["items"]
    )
    print_list(ctx.obj, page, ("id", "user", "by", "device", "address", "created", "last used", "expires"), rows)


@sessions.command("rm")
def rm_session(
    ctx: typer.Context,
    session: Annotated[
        str | None, typer.Argument(help="id of the login session, or e-mail address of a user who has one session")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="end all your sessions, or those of --user")] = False,
    user: Annotated[str | None, typer.Option(help="with --all: id or e-mail address of another user")] = None,
) -> None:
    """End a login session, or all of a user."""
    if every == (session is not None) or (user is not None and not every):
        fail("name a session, or use --all, with --user for another user", Exit.USAGE)
    if session is not None:
        session_id = session
        if "@" in session:  # all sessions of this user have the address as their name
            owner = user_id(ctx, session)
            session_id = id_by_name(
                ctx.obj, "/sessions", "login sessions", session, lambda _: (session,), user_id=owner
            )
        ctx.obj.delete(item_path("sessions", session_id))
        print_stderr(f"session {session_id} has ended")
    else:
        ended = ctx.obj.post("/sessions/$end", {"user_id": user_id(ctx, user)} if user else {})
        if not print_data(ctx.obj, ended):
            print_stderr(f"{ended['ended']} sessions ended")


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
    key: Annotated[str | None, typer.Option(help="id or name of the API key")] = None,
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
        key_id=key_id(ctx, key) if key else None,
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
