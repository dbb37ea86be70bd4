"""What handlers of workflows import and receive, in programs and in scripts. Standard library only: the sandbox loads
this file by its path (see `jail.py`)."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

STEPS = ("prepare", "mutate", "next")  # of a consumer, in this order

Ask = Callable[[str, Mapping[str, object]], Awaitable[Any]]  # sends a request to the host and returns its answer


@dataclass(frozen=True, slots=True)
class Reservation:
    """Events of one topic that a run reserves."""

    topic: str
    ids: Sequence[str]


@dataclass(slots=True)
class Prepare:
    """The decision of `prepare`: the events that this run handles, data for the later steps, the next wake-up time."""

    reservations: Mapping[str, Sequence[str]] | Sequence[Reservation] = field(default_factory=dict)
    data: Any = None
    wake_at: datetime | str | None = None
    title: str | None = None

    def dump(self) -> dict[str, object]:
        """Return the decision as JSON, not validated."""
        reservations: object = self.reservations
        if isinstance(reservations, Sequence) and all(isinstance(item, Reservation) for item in reservations):
            by_topic: dict[str, list[str]] = {}
            for reservation in reservations:
                by_topic.setdefault(reservation.topic, []).extend(reservation.ids)
            reservations = by_topic
        wake_at = self.wake_at.isoformat() if isinstance(self.wake_at, datetime) else self.wake_at
        return {"reservations": reservations, "data": self.data, "wake_at": wake_at, "title": self.title}


@dataclass(frozen=True, slots=True)
class Mutation:
    """The mutation as `next` receives it: `applied` with its result, `none`, or `skipped`."""

    status: str
    result: Any = None


@dataclass(frozen=True, slots=True)
class Event:
    """An event as handlers receive it."""

    id: str
    topic: str
    message_id: str
    payload: Any
    title: str | None
    status: str
    attempt: int  # the number of its next reservation, from 1
    created_at: datetime

    @classmethod
    def load(cls, fields: Mapping[str, Any]) -> "Event":
        return cls(**{**fields, "created_at": datetime.fromisoformat(fields["created_at"])})


class Context:
    """The first argument of a handler's step: `now`, `log`, and the requests to its host."""

    def __init__(self, ask: Ask, now: datetime, log: logging.Logger) -> None:
        self._ask, self.now, self.log = ask, now, log

    async def publish(
        self, topic: str | Sequence[str], *, message_id: str, payload: object = None, title: str | None = None
    ) -> None:
        """Put an event into a topic, or into several. The same `message_id` again replaces a pending event, and is a
        no-op once a run has reserved it."""
        params = {"topic": topic, "message_id": message_id, "payload": payload, "title": title}
        await self._ask("publish", params)

    async def peek(self, topic: str, limit: int = 100) -> list[Event]:
        """Return pending events of a topic, oldest first."""
        return [Event.load(fields) for fields in await self._ask("peek", {"topic": topic, "limit": limit})]

    async def get(self, topic: str, ids: Sequence[str]) -> list[Event]:
        """Return events by their ids, in any status."""
        return [Event.load(fields) for fields in await self._ask("get", {"topic": topic, "ids": list(ids)})]

    async def call(self, name: str, /, **params: object) -> Any:
        """Call a method of a connector: `await ctx.call("sheets.append_row", sheet="Mail", row=[…])`."""
        return await self._ask("call", {"name": name, "params": params})


def every(interval: str | float) -> dict[str, object]:
    """Return a schedule: `every("5m")`."""
    return {"interval": interval}


def cron(expression: str, timezone: str = "UTC") -> dict[str, object]:
    """Return a schedule: `cron("0 9 * * 1-5", "Europe/Oslo")`."""
    return {"cron_expression": expression, "timezone": timezone}
