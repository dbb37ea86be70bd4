"""Commands on freeze windows: add, edit, delete."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from rota.core.errors import Conflict, Invalid
from rota.core.freeze import FreezeMode, FreezeWindow, check_window
from rota.core.ids import new_id
from rota.core.policy import choice
from rota.db.dialect import Tx
from rota.engine import freezes, schedules
from rota.engine.engine_base import EngineBase

FREEZE_WINDOWS_MAX = 200  # of an org, without those that have ended
START_GRACE = timedelta(minutes=1)  # a start so long ago means now: the client's clock and the request's way differ
SCOPES = ("kind", "queue", "tag")


class FreezeCommands(EngineBase):
    async def add_freeze_window(self, org_id: str, fields: Mapping[str, Any], by: str | None = None) -> str:
        """Announce a freeze window; returns its id. It begins now without `starts_at`, or if that lies less than
        a minute ago. Raises Invalid, or Conflict for a name that exists."""
        now = self.clock.now()
        starts_at = fields.get("starts_at") or now
        if now - START_GRACE < starts_at < now:
            starts_at = now
        check_window(starts_at, fields["ends_at"], now)
        self.check_kind(fields.get("kind"))
        values = {
            "id": new_id(),
            "org_id": org_id,
            "name": fields["name"],
            "starts_at": starts_at,
            "ends_at": fields["ends_at"],
            "mode": choice(FreezeMode, fields.get("mode") or FreezeMode.SKIP, "mode"),
            "reason": fields.get("reason") or "",
            **{field: fields.get(field) for field in SCOPES},
            "created_by": by,
            "created_at": now,
            "updated_at": now,
        }

        def step(tx: Tx) -> str:
            if freezes.count(tx, org_id, now) >= FREEZE_WINDOWS_MAX:
                raise Conflict(f"the org has {FREEZE_WINDOWS_MAX} freeze windows ahead already; delete one of them")
            freezes.insert(tx, values)
            return str(values["id"])

        return await self.write_and_wake(step)

    async def edit_freeze_window(self, org_id: str, key: str, fields: Mapping[str, Any]) -> str:
        """Change a freeze window; absent fields stay, null removes `kind`, `queue` or `tag`. Returns its id. Slots that
        were decided keep their verdict. Raises NotFound, Invalid, or Conflict for a window that has ended."""
        now = self.clock.now()
        self.check_kind(fields.get("kind"))

        def step(tx: Tx) -> str:
            old = freezes.row(tx, org_id, key, for_update=True)
            if old.ends_at <= now:
                raise Conflict(f"freeze window {old.name!r} has ended: its slots are decided; add another one")
            values = {name: value for name, value in fields.items() if value is not None or name in SCOPES}
            begun = old.starts_at <= now
            if begun and values.get("starts_at", old.starts_at) != old.starts_at:
                raise Invalid("starts_at", values["starts_at"].isoformat(), "cannot change: the window has begun")
            check_window(values.get("starts_at", old.starts_at), values.get("ends_at", old.ends_at), now, begun=begun)
            if "mode" in values:
                values["mode"] = choice(FreezeMode, values["mode"], "mode")
            freezes.change(tx, old, values, now)
            return str(old.id)

        return await self.write_and_wake(step)

    async def delete_freeze_window(self, org_id: str, key: str) -> None:
        """Delete a freeze window, which ends it; slots that it holds are due now."""
        await self.write_and_wake(lambda tx: freezes.remove(tx, org_id, key, self.clock.now()))

    async def freeze_warnings(self, org_id: str, key: str, now: datetime) -> list[str]:
        """Return a warning for each freeze window that is in effect for a schedule: requests of people start anyway."""

        def read(tx: Tx) -> list[FreezeWindow]:
            schedule = schedules.get(tx, org_id, key)
            return [window for window in freezes.of_schedule(tx, schedule, now) if window.contains(now)]

        return [
            f"freeze {window.note} is in effect until {window.ends_at.isoformat(timespec='seconds')}; "
            "requests of people run all the same"
            for window in await self.db.read(read)
        ]

    def check_kind(self, kind: str | None) -> None:
        """Raise Invalid for a kind of work that does not exist."""
        if kind is not None and kind not in self.runners:
            raise Invalid("kind", kind, f"is not one of {', '.join(sorted(self.runners))}")
