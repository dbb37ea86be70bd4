"""`rota profile …`: named servers and keys, stored on this machine."""

import json
import os
from typing import Annotated

import typer

from rota.frame.cli.connection import Exit, fail, print_stderr, profiles_file, read_profiles
from rota.frame.cli.options import command_group
from rota.frame.cli.output import print_data, print_list

profiles = command_group("Named servers and keys, stored on this machine.")


@profiles.command("set")
def set_profile(ctx: typer.Context, name: Annotated[str, typer.Argument(help="name of the profile")]) -> None:
    """Save --server and --key of this command line under a name."""
    server, key = ctx.obj.address()
    write_profiles({**read_profiles(), name: {"server": server, "key": key}})
    print_stderr(f"profile {name} saved in {profiles_file()}; use it with --profile {name} or ROTA_PROFILE={name}")


@profiles.command("list", reads=True)
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
