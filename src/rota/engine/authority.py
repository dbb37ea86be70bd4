"""Who may let work run under a grant, and so at the expense of its account: the grant's owner, or an admin."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from rota.core.errors import Invalid, Refused
from rota.core.model import Schedule
from rota.core.policy import Billing, Failure, FailureClass
from rota.db.dialect import Tx
from rota.engine import grants, orgs
from rota.engine.audit_log import AuditEntry
from rota.engine.grants import Authority
from rota.engine.runner import Runners, Skipped


def may_use(act: AuditEntry | None, owner_id: str) -> bool:
    """Whether the author of an act may use or revoke a grant of this owner. Without an act, the program itself does."""
    return act is None or act.admin or act.user_id == owner_id


def check_owner(tx: Tx, act: AuditEntry | None, org_id: str, grant_id: str) -> None:
    """Raise Refused if the author of an act may neither use nor revoke a grant, NotFound if it does not exist."""
    if not may_use(act, grants.get(tx, org_id, grant_id).owner_id):
        raise Refused(f"grant {grant_id}: only its owner or an admin may use or revoke it")


def check_grant(tx: Tx, runners: Runners, schedule: Schedule, now: datetime) -> None:
    """Raise Invalid if the grant of a schedule does not allow what it does."""
    assert schedule.grant_id is not None
    names = runners[schedule.kind].known_as(tx, schedule.org_id, schedule.target, schedule.input)
    code = grants.trouble(tx, schedule.org_id, schedule.grant_id, schedule.kind, names, now)
    if code is not None:
        raise Invalid("grant_id", schedule.grant_id, f"does not allow {schedule.kind} {schedule.target} ({code})")


def with_grant(
    tx: Tx, runners: Runners, act: AuditEntry | None, schedule: Schedule, now: datetime, before: Schedule | None = None
) -> Schedule:
    """Return the schedule with a grant that allows what it does. A named grant must be the author's to use, unless the
    schedule had it before for the same work. Where the kind needs a grant and none is named, the schedule keeps the
    one it had, if the author may use it for this work; else one is minted in the author's name."""
    old_grant = None if before is None else before.grant_id
    same = before is not None and (schedule.target, schedule.input) == (before.target, before.input)
    needs_grant = runners[schedule.kind].under_grant
    named = schedule.grant_id
    if named is not None and not (needs_grant and grants.minted_for(tx, named) == schedule.id):
        check_grant(tx, runners, schedule, now)
        if not (same and named == old_grant):
            check_owner(tx, act, schedule.org_id, named)
        return schedule
    if not needs_grant:
        return schedule
    kept = named or old_grant
    allowed = kept and grants.trouble(tx, schedule.org_id, kept, schedule.kind, [schedule.target], now) is None
    if kept and allowed and (same or may_use(act, grants.get(tx, schedule.org_id, kept).owner_id)):
        return replace(schedule, grant_id=kept)
    grants.revoke_minted(tx, schedule.id, now)
    owner = (act.user_id if act else schedule.owner_id) or orgs.system_user(tx, schedule.org_id, now)
    scope = grants.scope_for(schedule.kind, schedule.target)
    minted = grants.mint(tx, schedule.org_id, owner, [scope], now, schedule_id=schedule.id)
    return replace(schedule, grant_id=minted)


def check_may_begin(
    tx: Tx,
    org_id: str,
    grant_id: str,
    kind: str,
    targets: Collection[str],
    mode: Billing,
    now: datetime,
    needed_credits: int = 0,
) -> Authority:
    """Return the authority under which work may begin. Raises Skipped if the grant does not hold, its account is closed
    or, where credits are enforced, has fewer than are needed, or its budget is used up."""
    authority = grants.authority_of(tx, org_id, grant_id)
    if authority is None:
        raise Skipped("grant_not_found")
    code = authority.grant.trouble(kind, targets, now)
    if code is not None:
        raise Skipped(code)
    if mode is Billing.OFF:
        return authority
    account_id, balance = authority.grant.billing_account_id, authority.balance_credits
    if balance is None or authority.closed_at is not None:
        state = "not found" if balance is None else "it is closed"
        raise Skipped("budget", refusal("billing_account_closed", f"billing account {account_id}: {state}"))
    spent = authority.grant.used_up(now)
    if spent is not None:
        raise Skipped("budget", spent_failure(spent))
    if mode is Billing.ENFORCE and balance < needed_credits:
        text = f"the account has {balance} credits"
        needed = f"; about {needed_credits} are needed" if needed_credits else ""
        raise Skipped("budget", refusal("insufficient_credits", text + needed))
    return authority


def refusal(code: str, message: str) -> Failure:
    return Failure(FailureClass.BUDGET, "Refused", message, code=code)


def spent_failure(budget: str) -> Failure:
    return Failure(FailureClass.BUDGET, "BudgetSpent", f"the grant's budget ({budget}) is used up", code="budget")
