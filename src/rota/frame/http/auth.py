"""Authentication and authorisation: API keys (`Authorization: Bearer …`, `X-API-Key: …`), roles and scopes."""

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from hashlib import sha256
from typing import Annotated, Protocol

import structlog
from fastapi import BackgroundTasks, Depends, Request
from starlette.exceptions import HTTPException
from starlette.types import Scope

from rota.core.errors import Refused
from rota.core.kinds import traits_of
from rota.core.model import Schedule
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.frame.http.guessing import Bucket, FailedAttempts, network_of

# The scopes that add to a role, for operators' keys. `shell` includes `host-shell`.
SHELL = "shell"  # run anything on the workers
HOST_SHELL = "host-shell"  # run commands and functions on hosts, as far as their agents allow
ADDING_SCOPES = frozenset({SHELL, HOST_SHELL})
NO_SCOPE = "none"  # restricts a key to nothing: no resource has this name
APPROVE_PREFIX = "approve:"  # a scope `approve:WHO` lets its key decide the approvals that wait for WHO
HOST_SHELL_TYPES = frozenset({"shell", "python"})  # the job types that need `host-shell`
LAST_USED_PRECISION = timedelta(minutes=1)  # of `last_used_at`: saves a write per request
MAX_REASON_CHARACTERS = 1000  # characters
MAX_SERVICE_HEADER_CHARACTERS, MAX_SERVICE_TOKEN_CHARACTERS = 512, 256
SESSION_SCOPE_KEY = (
    "rota.session"  # key in the ASGI scope, which clients cannot set: returns the caller of the login session
)
CALLER_SCOPE_KEY = "rota.caller"  # key in the ASGI scope: the caller, if it was authenticated before its route runs
REQUEST_DATABASE = (
    "rota.request_database"  # key in the ASGI scope: the database of the transaction of an idempotent request
)
WRITERS_SCOPE_KEY = "rota.writers"  # key in the ASGI scope: the users whose write this request is
VERBS = {"POST": "create", "PUT": "edit", "PATCH": "edit", "DELETE": "delete"}


class Role(IntEnum):
    """Roles in ascending order; each includes the permissions of the previous one."""

    VIEWER = 1  # reads
    OPERATOR = 2  # runs and edits
    ADMIN = 3  # manages people, hosts and keys


@dataclass(frozen=True, slots=True)
class Caller:
    org_id: str
    user_id: str  # the user on whose behalf the key acts
    key_id: str | None  # None for a login session that was not started by a link of a key
    role: Role
    scopes: frozenset[str]
    instance_admin: bool
    used_at: datetime | None = None
    expires_at: datetime | None = None  # of the key
    is_service: bool = False  # a service account, which cannot log in
    session_id: str | None = None  # of the login session that makes the request

    @property
    def narrowed_to(self) -> frozenset[str]:
        """The resources that the key is restricted to; empty means all."""
        return frozenset(scope for scope in self.scopes if not adds_to_role(scope))

    @property
    def sees_org(self) -> str | None:
        """The org to which reports over the installation are limited; None (all orgs) for an instance admin."""
        return None if self.instance_admin else self.org_id

    def check(self, role: Role, resource: str, *, writes: bool = False) -> None:
        """Raises Refused unless role and scopes suffice. With `writes`, a `:read` scope does not."""
        if self.role < role:
            raise Refused(f"this needs the role {role.name.lower()}; your role is {self.role.name.lower()}")
        narrow = self.narrowed_to
        read = {f"{resource}:read"} if role is Role.VIEWER and not writes else set()
        if narrow and not narrow & {resource, *read}:
            raise Refused(f"this needs the scope {resource}; your key has {', '.join(sorted(narrow))}")

    def may(self, role: Role, resource: str) -> bool:
        """Return whether `check` passes."""
        try:
            self.check(role, resource)
        except Refused:
            return False
        return True

    def reads(self, resource: str) -> bool:
        """Whether the API would answer a GET of this resource."""
        return self.may(Role.VIEWER, resource)

    def check_unnarrowed(self, act: str) -> None:
        """Raises Refused for a key with scopes: the act would grant more than the key allows."""
        if self.narrowed_to:
            raise Refused(
                f"{act} needs a key without scopes; yours is restricted to {', '.join(sorted(self.narrowed_to))}"
            )

    def check_account_change(self, act: str) -> None:
        """Raises Refused for a key with scopes or an expiry: a password or role has neither, and would outlive it."""
        self.check_unnarrowed(act)
        if self.expires_at is not None:
            raise Refused(f"{act} needs a login or a key that does not expire; yours expires on {self.expires_at:%F}")

    def check_new_key(self, scopes: Collection[str], expires_at: datetime | None) -> None:
        """Raises Refused if a key with these scopes and this expiry could do more than the caller's or outlive it."""
        narrow = self.narrowed_to
        wanted = {scope for scope in scopes if not adds_to_role(scope)}
        wider = sorted(scope for scope in wanted if not {scope, scope.removesuffix(":read")} & narrow)
        if narrow and (wider or not wanted):
            listed = ", ".join(sorted(narrow))
            raise Refused(
                f"a new key can have at most the scopes of the key that creates it ({listed}); "
                + (f"remove {', '.join(wider)}" if wider else "name the scopes of the new key")
            )
        if self.expires_at is not None and (expires_at is None or expires_at > self.expires_at):
            until = self.expires_at.isoformat(timespec="seconds")
            raise Refused(f"a new key cannot outlive the key that creates it: set expires_at to {until} or earlier")

    def may_approve(self, who: str, email: str | None) -> bool:
        """Whether the caller may decide approvals that wait for `who`: a role, an e-mail address or a name."""
        if f"{APPROVE_PREFIX}{who}" in self.scopes or self.role >= Role.ADMIN:
            return True
        return (who == "operator" and self.role >= Role.OPERATOR) or (email is not None and who == email)

    @property
    def holds_shell(self) -> bool:
        return self.role >= Role.ADMIN or SHELL in self.scopes

    def check_shell(self) -> None:
        if not self.holds_shell:
            raise Refused("shell tasks need an admin key, or an operator key with the scope shell")

    def check_job_type(self, job_type: object) -> None:
        """Raises Refused if a host job of this type needs the scope `host-shell` and the caller lacks it."""
        needed = isinstance(job_type, str) and job_type in HOST_SHELL_TYPES
        if needed and self.role < Role.ADMIN and not self.scopes & ADDING_SCOPES:
            raise Refused(f"the job type {job_type} needs an admin key, or an operator key with the scope {HOST_SHELL}")

    def check_schedule(self, new: Schedule, before: Schedule | None = None) -> None:
        """Raises Refused if `new` gives a host another job than `before`, of a type that the caller may not order."""
        same = before is not None and (new.kind, new.target, new.input) == (before.kind, before.target, before.input)
        if traits_of(new.kind).orders_hosts and not same and isinstance(new.input, Mapping):
            self.check_job_type(new.input.get("job_type"))


def adds_to_role(scope: str) -> bool:
    """Return whether a scope adds to a role; the others restrict a key to a resource."""
    return scope in ADDING_SCOPES or scope.startswith(APPROVE_PREFIX)


def scopes_within(scopes: Collection[str], limits: Collection[str]) -> frozenset[str]:
    """Return the scopes of a key as far as those of its service account allow. No limits: all of them. A key whose
    scopes are all outside gets NO_SCOPE: no scopes at all would mean no restriction."""
    if not limits:
        return frozenset(scopes)
    added = {scope for scope in scopes if adds_to_role(scope)}
    allowed = {scope for scope in limits if adds_to_role(scope)}
    adding = {scope for scope in added if scope in allowed or (scope in ADDING_SCOPES and SHELL in allowed)}
    narrow, limit = set(scopes) - added, set(limits) - allowed
    if not narrow or not limit:
        return frozenset(adding | narrow | limit)
    both = {scope for scope in narrow if {scope, scope.removesuffix(":read")} & limit}
    both |= {scope for scope in limit if scope.removesuffix(":read") in narrow}
    return frozenset(adding | (both or {NO_SCOPE}))


class SessionUser(Protocol):
    """The user of a login session."""

    @property
    def user_id(self) -> str: ...
    @property
    def org_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def org_name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LoginSession:
    """A live login session of the dashboard and its caller."""

    id: str
    last_used_at: datetime
    user: SessionUser
    caller: Caller


class Authentication(Protocol):
    """Port: who is behind an API key or the cookie of a login session. `app.state.authentication` implements it."""

    def key_prefix(self, text: str) -> str:
        """Return the part of an API key that is not secret."""
        ...

    async def caller_by_key(self, text: str, now: datetime) -> Caller | None:
        """Return the caller behind an API key, None if it is unknown. Raises Unauthenticated if it was revoked or has
        expired."""
        ...

    async def login_session(self, token: str, now: datetime) -> LoginSession | None:
        """Return the session of a cookie's token, None after its end. Raises Unauthenticated if it acts with a key that
        was revoked or has expired."""
        ...

    async def record_key_use(self, key_id: str, now: datetime) -> None: ...

    async def record_session_use(self, session_id: str, now: datetime) -> None: ...


class Unauthenticated(Refused):
    """Missing, unknown, expired or revoked credentials: 401."""

    code = "unauthenticated"


class TooManyStreams(Refused):
    """A caller has reached its limit of event streams: 429."""

    code = "too_many_streams"


async def authenticate(request: Request) -> Caller:
    """Return the caller of a request. Raises Unauthenticated; an unknown key counts as a failed attempt."""
    if CALLER_SCOPE_KEY in request.scope:
        known_caller: Caller = request.scope.pop(CALLER_SCOPE_KEY)  # once: a stream authenticates again
        return known_caller
    if SESSION_SCOPE_KEY in request.scope:
        session_caller: Caller = await request.scope[SESSION_SCOPE_KEY]()
        return session_caller
    anyone: Caller | None = request.app.state.anyone
    if anyone is not None:
        return anyone
    text = key_text(request)
    if text is None:
        raise Unauthenticated("this needs an API key: send `Authorization: Bearer rota_…` or `X-API-Key: rota_…`")
    authentication: Authentication = request.app.state.authentication
    now: datetime = request.app.state.engine.clock.now()
    caller = await authentication.caller_by_key(text, now)
    if caller is None:
        failures: FailedAttempts = request.app.state.failures
        if not getattr(
            request.state, "guessed", False
        ):  # counted once: the idempotency layer authenticates before the route
            failures.count(now, guess_bucket(request, "API key"), Bucket(f"prefix {authentication.key_prefix(text)}"))
            request.state.guessed = True
        raise Unauthenticated("unknown API key; it may be from another server")
    return caller


async def record_caller(
    request: Request, later: BackgroundTasks, caller: Annotated[Caller, Depends(authenticate)]
) -> None:
    """Dependency of every route: give a write request an engine that writes the audit log, and record the key's use."""
    engine: Engine = request.app.state.engine
    if caller.key_id is not None and not use_is_recorded(request, caller):
        authentication: Authentication = request.app.state.authentication
        later.add_task(authentication.record_key_use, caller.key_id, engine.clock.now())  # after the response
    if request.method in VERBS:
        request.scope.get(WRITERS_SCOPE_KEY, []).append(caller.user_id)
        request.state.engine = engine.audited_as(audit_entry_of(request, caller), request.scope.get(REQUEST_DATABASE))


def use_is_recorded(request: Request, caller: Caller) -> bool:
    """Return whether `last_used_at` of the caller's key, if any, is recent enough."""
    now: datetime = request.app.state.engine.clock.now()
    return caller.key_id is None or (caller.used_at is not None and now - caller.used_at < LAST_USED_PRECISION)


def require_role(
    role: Role, known: Callable[..., Awaitable[Caller]] = authenticate
) -> Callable[[Request, Caller], Awaitable[Caller]]:
    async def check(request: Request, caller: Annotated[Caller, Depends(known)]) -> Caller:
        caller.check(role, resource_of(request))
        return caller

    check.role = role  # type: ignore[attr-defined]  # for `direct_routes`
    return check


async def instance_admin(caller: Annotated[Caller, Depends(require_role(Role.ADMIN))]) -> Caller:
    if not caller.instance_admin:
        raise Refused("this needs an instance admin key, such as admin.key in the data directory of the server")
    return caller


async def require_service_token(request: Request) -> None:
    """Dependency of internal routes. Raises Unauthenticated unless the request has ROTA_SERVICE_TOKEN."""
    expected: str = request.app.state.service_token
    token = key_text(request) or ""
    if (
        len(request.headers.get("authorization", "")) > MAX_SERVICE_HEADER_CHARACTERS
        or len(token) > MAX_SERVICE_TOKEN_CHARACTERS
    ):
        raise Unauthenticated(f"a service token has at most {MAX_SERVICE_TOKEN_CHARACTERS} characters")
    # digests have equal lengths: the comparison time does not depend on the length of the token
    expected_digest, token_digest = sha256(expected.encode()).digest(), sha256(token.encode()).digest()
    if not expected or not hmac.compare_digest(token_digest, expected_digest):
        failures: FailedAttempts = request.app.state.failures
        if token:
            failures.count(request.app.state.engine.clock.now(), guess_bucket(request, "service token"))
        raise Unauthenticated("this needs the service token: `Authorization: Bearer …` with ROTA_SERVICE_TOKEN")


Viewer = Annotated[Caller, Depends(require_role(Role.VIEWER))]
Operator = Annotated[Caller, Depends(require_role(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(require_role(Role.ADMIN))]
InstanceAdmin = Annotated[Caller, Depends(instance_admin)]


def key_text(request: Request) -> str | None:
    """Return the key or token of a request; `Authorization` takes precedence over `X-API-Key`. Raises HTTPException 400
    for repeated headers: a proxy may check only one of them."""
    sent: dict[bytes, str] = {}
    for name, value in request.scope["headers"]:
        if name in (b"authorization", b"x-api-key"):
            if name in sent:
                raise HTTPException(400, f"the request has several {name.decode()} headers; send one")
            sent[name] = value.decode("latin-1")
    scheme, _, token = sent.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return sent.get(b"x-api-key") or None


def guess_bucket(request: Request, credential: str) -> Bucket:
    """Return the bucket that counts failed attempts for a kind of credential from the request's address."""
    return Bucket(f"{credential} from {network_of(address_of(request))}")


def address_of(request: Request) -> str | None:
    return request.client.host if request.client else None


def resource_of(request: Request) -> str:
    """Return `schedules` for `/api/v1/schedules/nightly/$pause` and for the dashboard's `/schedules`."""
    return route_path(request.scope).removeprefix("/api/v1").split("/")[1]


def route_path(scope: Scope) -> str:
    """Return the path below the mount point of the application."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def audit_entry_of(request: Request, caller: Caller) -> AuditEntry:
    """Return the audit entry of a write request, derived from its route."""
    last = str(request.scope["route"].path).rpartition("/")[2]
    return AuditEntry(
        caller.org_id,
        caller.user_id,
        resource_of(request),
        last[1:] if last[0] == "$" else VERBS[request.method],
        target_of(request),
        caller.key_id,
        address_of(request),
        structlog.contextvars.get_contextvars().get("request_id"),
        reason_of(request),
        caller.role >= Role.ADMIN,
    )


def engine_acting_on(request: Request, resource: str, verb: str, target: str | None) -> Engine:
    """Return the engine of a write request with entries of the audit log for another resource than its path names: for
    routes that change several."""
    engine: Engine = request.state.engine
    assert engine.act is not None
    entry = replace(engine.act, resource=resource, verb=verb, target=target)
    base: Engine = request.app.state.engine
    return base.audited_as(entry, request.scope.get(REQUEST_DATABASE)).reading_own_writes()


def target_of(request: Request) -> str | None:
    """Return the id or name in a path: its first parameter, or the three parts of a pipeline's path."""
    parameters = [str(value) for value in request.path_params.values()]
    return "/".join(parameters[:3]) if "layer" in request.path_params else next(iter(parameters), None)


def reason_of(request: Request) -> str | None:
    """Return the `X-Reason` header, decoded as UTF-8 and truncated, or None."""
    return (
        request.headers.get("x-reason", "").encode("latin-1").decode("utf-8", "replace")[:MAX_REASON_CHARACTERS] or None
    )
