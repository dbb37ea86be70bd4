"""An order that is paid, approved and shipped, and goes on after every crash and deployment.

Run `rota up examples/durable_order.py`, then in another terminal:

    rota job add order --input '{"number": "1042", "amount": 700}'
    rota job show JOB            # paused: it waits for an approval
    rota run approve JOB --comment "good customer"
    rota signal parcel.sent --key 1042 --payload '{"tracking": "NO-7"}'
    rota run wait JOB
"""

from pathlib import Path
from typing import Any

from rota import Applied, NotApplied, Retry, Rota, RunContext

app = Rota()
PAYMENTS = Path("payments")  # stands for the payment service: a file per payment


def reserve(number: str) -> str:
    return f"shelf for {number}"


def charge(amount: int, idempotency_key: str) -> str:
    PAYMENTS.mkdir(exist_ok=True)
    (PAYMENTS / idempotency_key).write_text(str(amount))
    return idempotency_key


def find_payment(idempotency_key: str, params: dict[str, Any]) -> Applied | NotApplied:
    return Applied(idempotency_key) if (PAYMENTS / idempotency_key).exists() else NotApplied()


@app.task
async def order(ctx: RunContext, number: str, amount: int) -> dict[str, object]:
    shelf = await ctx.step("reserve", reserve, number, retry=Retry(3, 1000))
    if amount > 500:
        decision = await ctx.approval("operator", title=f"Order {number} of {amount} €", timeout="2d")
        if not decision.approved:
            return {"rejected_by": decision.by}
    payment = await ctx.effect("charge", charge, amount, reconcile=find_payment)
    parcel = await ctx.wait_for("parcel.sent", key=number, timeout="30d")
    receipt = await ctx.call("receipt", number=number, amount=amount)
    return {"shelf": shelf, "payment": payment, "tracking": parcel["tracking"], "receipt": receipt}


@app.task
def receipt(number: str, amount: int) -> str:
    return f"Order {number}: {amount} €"
