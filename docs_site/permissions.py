"""The reference page of permissions: the role and the scope that each route needs, read from its dependencies."""

from collections import defaultdict
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from rota.app.api import create_api
from rota.core.clock import SystemClock
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.frame.http import auth

PREFIX = "/api/v1/"
MORE_RIGHTS = (  # scopes that add to a role, and what they allow
    (auth.SHELL, "store, change and delete shell tasks; includes `host-shell`"),
    (auth.HOST_SHELL, "run the job types `shell` and `python` on hosts"),
    (f"{auth.APPROVE_PREFIX}NAME", "decide the approvals that wait for NAME, such as `approve:catch-up`"),
)
NO_ROLE = "none"


def permissions() -> str:
    """Return the text of the page."""
    from docs_site.reference import NOTE, table

    scopes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for method, path, role in routes():
        scope = path.removeprefix(PREFIX).split("/")[0]
        scopes[scope][role].append(f"`{method} {path.removeprefix(PREFIX[:-1])}`")
    rows = [
        (f"`{scope}`", role, ", ".join(sorted(listed)))
        for scope, by_role in sorted(scopes.items())
        for role, listed in sorted(by_role.items())
    ]
    return (
        "# Permissions\n\nEach route needs a role, and a key with scopes needs that of the route's resource: `runs` "
        "for all of `/runs`, or `runs:read` for what a viewer may read. Roles: `viewer` reads, `operator` also runs "
        "and edits, `admin` also manages users and keys ([people and keys](../people-and-keys.md)). `none`: open, or "
        "with a credential of its own (login, signed webhooks, agents).\n\n## Scopes and routes\n\n"
        + table(("scope", "role", "routes below `/api/v1`"), rows)
        + "\n\n## Scopes that add to a role\n\n"
        + table(("scope", "allows an operator's key to"), [(f"`{scope}`", text) for scope, text in MORE_RIGHTS])
        + NOTE
    )


def routes() -> Iterator[tuple[str, str, str]]:
    """Yield method, path and the needed role of each route of the API."""
    with TemporaryDirectory() as directory:
        db = open_database(f"sqlite:///{directory}/rota.db")  # is not used
        api = create_api(Engine(db, SystemClock(), Wake(), {}, EngineSettings()), db)
        for included in api.routes:
            for context in getattr(included, "effective_route_contexts", tuple)():
                if context.path.startswith(PREFIX):
                    roles = list(roles_of(context.dependant))
                    name = max(roles).name.lower() if roles else NO_ROLE
                    yield from ((method, context.path, name) for method in sorted(context.methods))


def roles_of(dependant: Any) -> Iterator[auth.Role]:
    role = getattr(dependant.call, "role", None)
    if isinstance(role, auth.Role):
        yield role
    for below in dependant.dependencies:
        yield from roles_of(below)
