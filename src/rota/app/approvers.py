"""Who decides approvals and unknown outcomes, for the API and the dashboard."""

from dataclasses import dataclass

from rota.access import reports as access_reports
from rota.core.catch_up import APPROVER
from rota.core.errors import NotFound, Refused
from rota.db.connection import Database
from rota.frame.http.auth import Caller, Role


@dataclass(frozen=True, slots=True)
class Approver:
    """A caller and the user for whom it acts."""

    caller: Caller
    name: str  # as it is recorded with a decision: the e-mail address, else the name
    email: str | None

    @property
    def may_decide_catch_ups(self) -> bool:
        """Whether the caller may decide about catch-ups."""
        return self.caller.may(Role.VIEWER, "catch-ups") and self.caller.may_approve(APPROVER, None)

    def may_decide(self, who: str) -> bool:
        """Return whether the caller may decide an approval that waits for `who`."""
        try:
            self.caller.check(Role.VIEWER, "runs", writes=True)
        except Refused:
            return False
        return self.caller.may_approve(who, None if self.caller.narrowed_to else self.email)


async def approver_of(db: Database, caller: Caller) -> Approver:
    try:
        user = await db.read(access_reports.user, caller.org_id, caller.user_id)
    except NotFound:
        name = await db.read(access_reports.user_name, caller.user_id)
        return Approver(caller, name or caller.user_id, None)
    return Approver(caller, user["email"] or user["name"], user["email"])
