"""Route to change the caller's password."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rota.access.api.models import PasswordBody
from rota.access.api.password_rules import check_not_address
from rota.access.password_thread import in_password_thread
from rota.access.store import accounts, logins
from rota.core.errors import Conflict, Refused
from rota.db.dialect import Tx
from rota.frame.http.auth import Caller, Role, Viewer, address_of
from rota.frame.http.contract import engine_of
from rota.frame.http.guessing import Bucket, FailedAttempts, network_of
from rota.frame.http.models import BodyRoute

router = APIRouter(route_class=BodyRoute)


async def unnarrowed(caller: Viewer) -> Caller:
    """Dependency: the caller, who may write users with a key of no scopes. Checked before the body is validated."""
    caller.check(Role.VIEWER, "users", writes=True)
    caller.check_unnarrowed("changing a password")
    return caller


@router.post("/users/me/$password", status_code=204, tags=["users"])
async def change_own_password(
    request: Request, caller: Annotated[Caller, Depends(unnarrowed)], body: PasswordBody
) -> Response:
    """Change the caller's own password: `{current_password, new_password}`. Ends all login sessions of the user.

    Wrong current passwords are counted like those of a login.
    """
    engine = engine_of(request)
    user = await engine.db.read(logins.account, caller.org_id, caller.user_id)
    if user is None or user.password_hash is None:
        raise Conflict("your user has no password; it logs in by keys and login links")
    now, failures = engine.clock.now(), request.app.state.failures
    assert isinstance(failures, FailedAttempts)
    bucket = Bucket(f"password change of {user.user_id} from {network_of(address_of(request))}")
    failures.count(now, bucket)  # before the check: concurrent attempts must count, too
    if not await in_password_thread(accounts.password_matches, user.password_hash, body.current_password):
        raise Refused("the current password is wrong")
    failures.uncount(now, bucket)
    email = await engine.db.read(accounts.email_of, caller.org_id, caller.user_id)
    check_not_address(body.new_password, email or "", "new_password")
    hashed = await in_password_thread(accounts.hash_password, body.new_password)

    def step(tx: Tx) -> str:
        accounts.edit_user(tx, caller.org_id, caller.user_id, {"password_hash": hashed}, now)
        return caller.user_id

    await engine.db.tx(step)
    return Response(status_code=204)
