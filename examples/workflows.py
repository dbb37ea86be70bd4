"""Five ways to wait for events, and one workflow that polls: none of them turns while there is nothing to do.

Run it with `rota up examples/workflows.py`, then for instance

    rota workflow publish orders orders 1001 --payload '{"total": 30}'
    rota workflow show orders
"""

from datetime import timedelta

from rota import Prepare, Rota, Workflow, cron, every
from rota.connectors import Files

app = Rota()
app.connector("files", Files("."))


# 1. One after the other: take what is there. No wake time: a new event wakes it.

orders = app.workflow(Workflow("orders", topics=["orders"], description="Each order is a line in orders.csv"))


@orders.consumer(subscribe=["orders"])
class WriteOrder:
    async def prepare(self, ctx, state):
        waiting = await ctx.peek("orders", limit=1)
        if not waiting:
            return Prepare()
        order = waiting[0]
        return Prepare(reservations={"orders": [order.id]}, data=[order.message_id, order.payload["total"]],
                       title=f"order {order.message_id}")  # fmt: skip

    async def mutate(self, ctx, prepared):
        await ctx.call("files.append_csv", path="orders.csv", row=prepared.data)


# 2. Correlation: a payment and a parcel of the same order, whichever comes first.

matching = app.workflow(Workflow("matching", topics=["paid", "packed"]))


@matching.consumer(subscribe=["paid", "packed"])
class Ship:
    async def prepare(self, ctx, state):
        packed = {one.message_id: one for one in await ctx.peek("packed", limit=1000)}
        for paid in await ctx.peek("paid", limit=1000):
            if paid.message_id in packed:
                pair = {"paid": [paid.id], "packed": [packed[paid.message_id].id]}
                return Prepare(reservations=pair, title=f"ship {paid.message_id}")
        return Prepare()  # the missing half will wake it


# 3. A time window: what came is looked at an hour after it came.

cooling = app.workflow(Workflow("cooling", topics=["signups"]))
HOUR = timedelta(hours=1)


@cooling.consumer(subscribe=["signups"])
class Welcome:
    async def prepare(self, ctx, state):
        waiting = await ctx.peek("signups")
        ripe = [one for one in waiting if one.created_at + HOUR <= ctx.now]
        rest = [one.created_at + HOUR for one in waiting if one.created_at + HOUR > ctx.now]
        return Prepare(reservations={"signups": [one.id for one in ripe]}, wake_at=min(rest, default=None))


# 4. A batch: ten at once, or whatever there is an hour after the first.

batches = app.workflow(Workflow("batches", topics=["readings"]))


@batches.consumer(subscribe=["readings"])
class Store:
    async def prepare(self, ctx, state):
        waiting = await ctx.peek("readings", limit=10)
        if not waiting:
            return Prepare()
        due = waiting[0].created_at + HOUR
        if len(waiting) < 10 and ctx.now < due:
            return Prepare(wake_at=due)
        return Prepare(reservations={"readings": [one.id for one in waiting]}, title=f"{len(waiting)} readings")


# 5. A daily digest at nine: events wake it, but it says "not yet"; at nine it takes them and asks for the next day.

digest = app.workflow(Workflow("digest", topics=["notes"]))


@digest.consumer(subscribe=["notes"])
class Digest:
    async def prepare(self, ctx, state):
        last = (state or {}).get("day")
        today = ctx.now.date().isoformat()
        nine = ctx.now.replace(hour=9, minute=0, second=0, microsecond=0)
        tomorrow = nine + timedelta(days=1)
        if ctx.now < nine or last == today:
            return Prepare(wake_at=nine if ctx.now < nine else tomorrow)
        notes = await ctx.peek("notes", limit=1000)
        taken = {"notes": [one.id for one in notes]}
        return Prepare(reservations=taken, data=today, wake_at=tomorrow, title=f"{len(notes)} notes")

    async def next(self, ctx, prepared, mutation):
        return {"day": prepared.data} if prepared.data else None


# And a producer, which polls: what it publishes twice is there once.

feed = app.workflow(Workflow("feed", topics=["items"]))


@feed.producer(schedule=every("5m"), publishes=["items"])
async def poll(ctx, state):
    position = state or 0
    await ctx.publish("items", message_id=str(position), payload={"number": position})
    return position + 1


@feed.producer(schedule=cron("0 3 * * *", "Europe/Oslo"), publishes=["items"])
async def nightly(ctx, state):
    await ctx.publish("items", message_id=f"night-{ctx.now:%Y-%m-%d}", payload={})


@feed.consumer(subscribe=["items"])
class Read:
    async def prepare(self, ctx, state):
        return Prepare(reservations={"items": [one.id for one in await ctx.peek("items")]})
