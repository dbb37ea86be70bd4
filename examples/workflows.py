"""Five ways to wait for events, and a workflow that polls. None of them runs while no event is due.

Run it with `rota up examples/workflows.py`, then for instance

    rota workflow publish orders orders 1001 --payload '{"total": 30}'
    rota workflow show orders
"""

from datetime import timedelta
from typing import Any

from rota import Prepare, Rota, Workflow, cron, every
from rota.connectors import Files

app = Rota()
app.connector("files", Files("."))


# 1. One event at a time. No wake_at: a new event wakes the consumer.

orders = app.workflow(Workflow("orders", topics=["orders"], description="Each order is a line in orders.csv"))


@orders.consumer(subscribe=["orders"])
class WriteOrder:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("orders", limit=1)
        if not waiting:
            return Prepare()
        order = waiting[0]
        line = [order.message_id, order.payload["total"]]
        return Prepare(reservations={"orders": [order.id]}, data=line, title=f"order {order.message_id}")

    async def mutate(self, ctx: Any, prepared: Prepare) -> None:
        await ctx.call("files.append_csv", path="orders.csv", row=prepared.data)


# 2. Correlation: a payment and a parcel of the same order, whichever comes first.

matching = app.workflow(Workflow("matching", topics=["paid", "packed"]))


@matching.consumer(subscribe=["paid", "packed"])
class Ship:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        packed = {event.message_id: event for event in await ctx.peek("packed", limit=1000)}
        for paid in await ctx.peek("paid", limit=1000):
            if paid.message_id in packed:
                pair = {"paid": [paid.id], "packed": [packed[paid.message_id].id]}
                return Prepare(reservations=pair, title=f"ship {paid.message_id}")
        return Prepare()  # the missing event will wake it


# 3. A delay: each event is processed an hour after it was published.

cooling = app.workflow(Workflow("cooling", topics=["signups"]))
HOUR = timedelta(hours=1)


@cooling.consumer(subscribe=["signups"])
class Welcome:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("signups")
        due = [event for event in waiting if event.created_at + HOUR <= ctx.now]
        later = [event.created_at + HOUR for event in waiting if event.created_at + HOUR > ctx.now]
        return Prepare(reservations={"signups": [event.id for event in due]}, wake_at=min(later, default=None))


# 4. A batch: ten events, or fewer an hour after the first.

batches = app.workflow(Workflow("batches", topics=["readings"]))


@batches.consumer(subscribe=["readings"])
class Store:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("readings", limit=10)
        if not waiting:
            return Prepare()
        due = waiting[0].created_at + HOUR
        if len(waiting) < 10 and ctx.now < due:
            return Prepare(wake_at=due)
        return Prepare(reservations={"readings": [event.id for event in waiting]}, title=f"{len(waiting)} readings")


# 5. A daily digest at nine: events wake it, but it reserves them only at nine and then sleeps until the next day.

digest = app.workflow(Workflow("digest", topics=["notes"]))


@digest.consumer(subscribe=["notes"])
class Digest:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        last = (state or {}).get("day")
        today = ctx.now.date().isoformat()
        nine = ctx.now.replace(hour=9, minute=0, second=0, microsecond=0)
        tomorrow = nine + timedelta(days=1)
        if ctx.now < nine or last == today:
            return Prepare(wake_at=nine if ctx.now < nine else tomorrow)
        notes = await ctx.peek("notes", limit=1000)
        reserved = {"notes": [event.id for event in notes]}
        return Prepare(reservations=reserved, data=today, wake_at=tomorrow, title=f"{len(notes)} notes")

    async def next(self, ctx: Any, prepared: Prepare, mutation: Any) -> Any:
        return {"day": prepared.data} if prepared.data else None


# A producer polls. Publishing is idempotent: one event per message_id.

feed = app.workflow(Workflow("feed", topics=["items"]))


@feed.producer(schedule=every("5m"), publishes=["items"])
async def poll(ctx: Any, state: Any) -> int:
    position = state or 0
    await ctx.publish("items", message_id=str(position), payload={"number": position})
    return position + 1


@feed.producer(schedule=cron("0 3 * * *", "Europe/Oslo"), publishes=["items"])
async def nightly(ctx: Any, state: Any) -> None:
    await ctx.publish("items", message_id=f"night-{ctx.now:%Y-%m-%d}", payload={})


@feed.consumer(subscribe=["items"])
class Read:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        return Prepare(reservations={"items": [event.id for event in await ctx.peek("items")]})
