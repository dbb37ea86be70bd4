"""A program for the browser to watch: things that run, talk, fail and cost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rota import ArtifactManager, LogicError, Prepare, Rota, RunContext, Workflow, every, mutation
from rota.graphs import AssistantFinal, GraphRequest, LlmCaller, UsageReport

app = Rota()


@app.task
async def tick() -> str:
    """Says that it is there."""
    return "tock"


@app.task
async def talk(lines: int = 2000, word: str = "chapter") -> int:
    """Writes a line every tenth of a second."""
    for number in range(lines):
        print(f"{word} {number}")
        await asyncio.sleep(0.1)
    return lines


@app.task(retry={"max_retries": 2, "backoff_ms": 700})
async def import_orders(ctx: RunContext, day: str = "today", limit: int = 100) -> dict[str, object]:
    """Fetches orders; the shop is closed on each seventh slot."""
    for page in range(1, 4):
        print(f"reading page {page} of 3")
        await asyncio.sleep(0.02 * (1 + hash(ctx.run_id) % 9))
    if ctx.slot is not None and ctx.slot.toordinal() % 7 == 0 and ctx.attempt < 3:
        raise ConnectionError("the shop answered 503 Service Unavailable")
    return {"orders": 40 + hash(ctx.run_id) % 400, "day": day}


@app.task
def fails(message: str = "it does") -> None:
    raise ValueError(message)


async def poet(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
    """Writes a poem about the day."""
    yield UsageReport("one", "tiny", 120, 80, "0.004")
    yield AssistantFinal(f"Roses for {request.input.get('name', 'you')}")


app.graph("poet", poet, provider="python")
app.shell("disk", "df -h /")


# a durable task that a person and two signals lead to its end


def build(version: str) -> str:
    return f"wheel {version}"


def copy_to_mirror(version: str) -> None:
    raise ConnectionError(f"the mirror refused {version}")


@app.task
async def release(ctx: RunContext, version: str = "1.0") -> str:
    """Builds, asks for approval, and publishes after signals; a mirror that fails does not stop it."""
    await ctx.step("build", build, version)
    try:
        await ctx.step("mirror", copy_to_mirror, version)
    except ConnectionError:
        print("released without the mirror")
    decision = await ctx.approval("operator", title=f"Release {version}")
    if not decision.approved:
        raise LogicError(f"rejected: {decision.comment}")
    for stage in ("tested", "published"):
        await ctx.wait_for(stage, key=version)
        await ctx.step(f"note {stage}", build, stage)
    return version


# a workflow with a service that does not always answer


class Bank:
    """Pays; for payments named lost, the outcome is unknown."""

    @mutation
    async def pay(self, invoice: str, amount: int) -> dict[str, str]:
        if "lost" in invoice:
            raise ConnectionError("the bank closed the connection")
        return {"receipt": f"R-{invoice}"}


bills = Workflow("pay-invoices", topics=["invoices", "receipts"], description="Pays what comes in, and files receipts")


@bills.producer(schedule=every("15m"), publishes=["invoices"])
async def read_mailbox(ctx: Any, state: Any) -> int:
    """Two letters the first time; the others are published by hand."""
    for number in range(state or 1001, 1003):
        await ctx.publish(
            "invoices", message_id=f"{number}", payload={"amount": 12 * number}, title=f"Invoice {number}"
        )
    return 1003


@bills.consumer(subscribe=["invoices"], publishes=["receipts"])
class Pay:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("invoices", limit=1)
        if not waiting:
            return Prepare()
        event = waiting[0]
        data = {"invoice": event.message_id, "amount": int((event.payload or {}).get("amount", 0))}
        return Prepare(reservations={"invoices": [event.id]}, data=data, title=f"pay {event.title or event.message_id}")

    async def mutate(self, ctx: Any, prepared: Prepare) -> None:
        await ctx.call("bank.pay", **prepared.data)

    async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> None:
        if prepared.data and outcome.status == "applied":
            await ctx.publish(
                "receipts", message_id=prepared.data["invoice"], title=f"Receipt {prepared.data['invoice']}"
            )


@bills.consumer(subscribe=["receipts"])
class FileReceipts:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("receipts")
        return Prepare(reservations={"receipts": [event.id for event in waiting]})


app.connector("bank", Bank())
app.workflow(bills)

# and tables made out of tables

app.pipeline(
    "sales/bronze/orders", "SELECT range AS id, 'shop-' || range % 3 AS shop, 100 + range AS cents FROM range(900)"
)
app.pipeline(
    "sales/silver/by_shop",
    "SELECT shop, sum(cents)::BIGINT AS cents FROM sales.bronze.orders GROUP BY shop",
    after="sales/bronze/orders",
    description="What each shop took in",
)
app.pipeline("sales/gold/best", "SELECT * FROM sales.silver.by_shop ORDER BY cents DESC LIMIT 1")

# a log with everything, and results to preview


@app.task
async def chatter(files: ArtifactManager) -> None:
    """Writes 3,000 lines of all levels, a table and a page with a script."""
    for number in range(1, 3000):
        print(f"ERROR page {number} <b>failed</b>" if number % 1000 == 0 else f"INFO page {number} read")
    print("\x1b[32mgreen\x1b[0m ERROR")
    page = b"<h1>Report</h1><script>top.document.title = 'evil'</script>"
    await files.save(page, label="report", content_type="text/html")
    await files.save(b"shop,orders\n<b>Oslo</b>,3\n", label="orders", content_type="text/csv")
