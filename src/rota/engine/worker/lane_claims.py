"""Claims ready jobs from lanes (org, queue), fairly across orgs and within their limits."""

import random
from collections.abc import Callable, Collection, Sequence

from rota.core.fair_shares import Lane, divide_claims
from rota.core.model import Job
from rota.engine import claiming
from rota.engine.worker.registration import Registration


class LaneClaims:
    """Remembers between two claims where ready jobs were. `org_room` returns how many more jobs of an org this worker
    may claim; None: any number."""

    def __init__(self, registration: Registration, org_room: Callable[[str], int | None]) -> None:
        self.registration, self.db, self.org_room = registration, registration.engine.db, org_room
        self.turn = random.randrange(1000)  # rotates which lane is served first
        self.after: Lane | None = None  # the lane after which the next claim starts, if there are too many for one read
        self.sole: Lane | None = None  # the lane that had all ready jobs at the last claim
        self.unlimited = False  # no limit of an org or queue kept this worker from claiming more

    async def claim(self, room: int) -> tuple[list[Job], bool]:
        """Claim up to `room` jobs; returns them, and whether there may be more."""
        claimed = await self.claim_from_sole(room)
        if claimed:
            return claimed, len(claimed) == room
        claimed = await self.claim_from_lanes(room)
        return claimed, bool(claimed)

    async def claim_from_sole(self, room: int) -> list[Job]:
        """Claim without reading the lanes first, if one lane had all ready jobs; nothing if that has changed."""
        if self.sole is None or self.registration.stopping:
            return []
        org_room = self.org_room(self.sole.org_id)
        if org_room is not None and org_room < room:
            return []  # `claim_from_lanes` counts the shares of orgs
        worker, routes = self.registration.id, self.registration.routes
        return await self.db.statement(claiming.claim_sole(self.sole, worker=worker, routes=routes, room=room))

    async def claim_from_lanes(self, room: int) -> list[Job]:
        """Read which lanes have ready jobs and claim from them."""
        lanes = await self.read_lanes(self.after)
        if not lanes or self.registration.stopping:
            self.unlimited = not lanes
            return []
        rooms = (self.org_room(lane.org_id) for lane in lanes)
        shared = any(org_room is not None and org_room < room for org_room in rooms)
        self.unlimited = not shared and all(lane.cap is None for lane in lanes)
        is_sole = len(lanes) == 1 and self.unlimited and self.registration.serves_all
        self.sole = lanes[0] if is_sole else None
        if len(lanes) == claiming.LANES_PER_CLAIM:  # the next claim starts after the lanes that get room now
            self.after, self.turn = lanes[min(room, len(lanes)) - 1], 0
        else:
            self.after, self.turn = None, self.turn + 1
        return await self.claim_from(lanes, room)

    async def claim_for_other_orgs(self, waiting_orgs: Collection[str]) -> list[Job]:
        """Claim one job of each org that has none among the prefetched jobs, so that it does not wait for those."""
        if not waiting_orgs or self.registration.stopping:
            return []
        lanes = await self.read_lanes(None)
        others = {lane.org_id: lane for lane in lanes if lane.org_id not in waiting_orgs}
        if not others or self.registration.stopping:
            return []
        return await self.claim_from(list(others.values()), len(others))

    async def read_lanes(self, after: Lane | None) -> list[Lane]:
        return await self.db.read(claiming.lanes, self.registration.queues, after, self.registration.org_ids)

    async def claim_from(self, lanes: Sequence[Lane], room: int) -> list[Job]:
        rooms = {lane.org_id: self.org_room(lane.org_id) for lane in lanes}
        lanes = [lane for lane in lanes if rooms[lane.org_id] != 0]
        if not lanes:
            return []
        worker, routes = self.registration.id, self.registration.routes
        org_room = {org_id: org_room for org_id, org_room in rooms.items() if org_room is not None}
        if any(lane.cap is not None for lane in lanes):
            return await self.db.tx(
                claiming.claim, lanes, worker=worker, routes=routes, room=room, turn=self.turn, org_room=org_room
            )
        shares = divide_claims(lanes, room, self.turn, org_room)
        return await self.db.statement(claiming.lease_from(shares, worker, routes))
