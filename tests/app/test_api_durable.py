"""Durable tasks over HTTP: signals, decisions, retry from a step, and what job answers show."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from standardwebhooks.webhooks import Webhook

from rota import RunContext
from rota.core.webhooks import new_secret
from rota.engine.worker import Worker
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.registry import Task, task_rows
from rota.kinds.tasks.runner import TaskRunner
from rota.testing import register_worker
from tests.app.harness import Api


async def work(api: Api) -> None:
    """Run everything that is ready."""
    worker = Worker(api.engine)
    await worker.learn()
    await api.db.tx(register_worker, worker, api.engine)
    claimed = True
    while claimed:
        claimed = await worker.prefetch.claim() or bool(worker.active)
        while worker.active or worker.completer.results:
            await worker.cancellation.until_idle(60)
            await worker.completer.flush()


async def run(api: Api, function: Callable[..., Any], **params: Any) -> Any:
    """Declare a task, enqueue it and run it until it waits or ends; return the job."""
    runner = cast(TaskRunner, api.engine.runners["task"])
    runner.registry.add(Task(function.__name__, function=function))
    rows = task_rows(runner.registry, runner.injector, None)
    await api.db.tx(tasks_store.sync, api.org_id, rows, api.clock.now())
    made = await ask(api, "/jobs", {"target": function.__name__, "input": params or None})
    await work(api)
    return await api.get(f"/jobs/{made['job_id']}")


async def ask(api: Api, path: str, body: Any, status: int = 202) -> Any:
    answer = await api.call("POST", path, body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_job_shows_its_steps_and_what_it_waits_for(api: Api) -> None:
    async def durable_invoice(ctx: RunContext) -> object:
        await ctx.step("open", lambda: {"password": "secret", "number": 7})
        return await ctx.wait_for("invoice.paid", key="7")

    job = await run(api, durable_invoice)
    assert (job["status"], job["parent_id"], job["children"]) == ("paused", None, [])
    assert {name: job["waiting"][name] for name in ("for", "topic", "key", "until")} == {
        "for": "signal", "topic": "invoice.paid", "key": "7", "until": None,
    }  # fmt: skip
    assert [(step["name"], step["type"], step["status"]) for step in job["steps"]] == [
        ("open", "step", "done"),
        ("signal invoice.paid", "signal", "waiting"),
    ]
    assert "secret" not in str(job["steps"])
    why = await api.get(f"/runs/{job['id']}/$why")
    assert "it waits for a signal 'invoice.paid' with key '7'" in " ".join(why["sentences"])
    (run_id,) = job["run_ids"]
    assert (await api.get(f"/runs/{run_id}"))["reason"] == "signal"
    signal = {"topic": "invoice.paid", "key": "7", "payload": {"amount": 3}, "id": "payment-1"}
    assert await ask(api, "/signals", signal) == {"id": "payment-1", "delivered": True}
    await work(api)
    assert (await api.get(f"/runs/{run_id}"))["outcome"] == {"amount": 3}


async def test_wrong_signals_are_refused_and_not_stored(api: Api) -> None:
    for body in ({}, {"topic": ""}, {"topic": "t", "key": 7}, {"topic": "t", "more": 1}, {"topic": "x" * 201}):
        await ask(api, "/signals", body, 422)
    assert await api.count("signals") == 0


async def deliver(api: Api, hook: Any, body: bytes, webhook_id: str, secret: str | None = None, late: int = 0) -> Any:
    """Send a signed request to a webhook, as the library of Standard Webhooks signs it."""
    sent_at = api.clock.now() - timedelta(seconds=late)
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": Webhook(secret or hook["secret"]).sign(webhook_id, sent_at, body.decode()),
        "content-type": "application/json",
    }
    return await api.client.post(hook["path"], content=body, headers=headers)


async def test_a_signed_webhook_is_a_signal(api: Api) -> None:
    async def durable_order(ctx: RunContext) -> object:
        return await ctx.wait_for("order.paid", key="1042")

    job = await run(api, durable_order)
    made = {"name": "payments", "topic": "order.paid", "key_field": "data.order"}
    hook = await ask(api, "/signal-hooks", made, 201)
    await ask(api, "/signal-hooks", made, 409)
    body = b'{"type": "payment", "data": {"order": 1042}}'
    assert (await deliver(api, hook, body, "msg_1", new_secret())).status_code == 401
    assert (await deliver(api, hook, body, "msg_1", late=301)).status_code == 401
    assert (await deliver(api, {**hook, "path": hook["path"] + "0"}, body, "msg_1")).status_code == 404
    for wrong in (b"{", b'{"data": {}}', b'{"data": 7}', b""):
        assert (await deliver(api, hook, wrong, "msg_1")).status_code == 422
    assert await api.count("signals") == 0
    for _ in range(2):  # delivered again by a sender that missed the answer
        answer = await deliver(api, hook, body, "msg_1")
        assert (answer.status_code, answer.json()["delivered"]) == (202, True)
    assert await api.count("signals") == 1
    await work(api)
    assert (await api.get(f"/jobs/{job['id']}"))["status"] == "success"

    rotated = await ask(api, "/signal-hooks/payments/$rotate", None, 200)
    for secret in (hook["secret"], rotated["secret"]):  # the previous one for a day
        assert (await deliver(api, hook, body, "msg_2", secret)).status_code == 202
    api.clock.set(api.clock.now() + timedelta(days=1))
    assert (await deliver(api, hook, body, "msg_3", hook["secret"])).status_code == 401
    (listed,) = (await api.get("/signal-hooks"))["items"]
    assert "secret" not in listed
    assert hook["secret"] not in str(await api.get("/audit"))
    assert (await api.call("DELETE", "/signal-hooks/payments")).status_code == 204
    assert (await deliver(api, hook, body, "msg_4", rotated["secret"])).status_code == 404


async def test_an_approval_needs_the_right(api: Api) -> None:
    async def durable_payment(ctx: RunContext) -> object:
        decision = await ctx.approval("finance", title="Pay 3 €")
        return [decision.approved, decision.comment]

    job = await run(api, durable_payment)
    (run_id,) = job["run_ids"]
    keys = {
        name: (await ask(api, "/api-keys", {"name": name, "role": "operator", "scopes": scopes}, 201))["key"]
        for name, scopes in (("plain", []), ("finance", ["approve:finance"]))
    }
    path = f"/api/v1/runs/{run_id}/$reject"
    for name, status in (("plain", 403), ("finance", 202), ("finance", 409)):
        headers = {"authorization": f"Bearer {keys[name]}"}
        answer = await api.client.post(path, json={"comment": "too much"}, headers=headers)
        assert answer.status_code == status, answer.text
    await work(api)
    assert (await api.get(f"/runs/{run_id}"))["outcome"] == [False, "too much"]
    entries = (await api.get("/audit", action="runs.reject"))["items"]
    assert len(entries) == 1


async def test_an_effect_is_resolved(api: Api) -> None:
    def pay() -> None:
        raise TimeoutError("no answer")

    async def durable_order(ctx: RunContext) -> object:
        return await ctx.effect("pay", pay)

    job = await run(api, durable_order)
    (run_id, *_) = job["run_ids"]
    assert (await api.get(f"/runs/{run_id}"))["reason"] == "reconciliation"
    await ask(api, f"/runs/{run_id}/$resolve", {"resolution": "perhaps"}, 422)
    await ask(api, f"/runs/{run_id}/$resolve", {"resolution": "applied", "result": "by hand"})
    await work(api)
    assert (await api.get("/runs", job_id=job["id"]))["items"][0]["outcome"] == "by hand"


async def test_a_run_is_retried_from_a_step(api: Api) -> None:
    calls: list[str] = []

    async def durable_report(ctx: RunContext, fails: bool = True) -> object:
        for name in ("read", "sum", "write"):
            await ctx.step(name, lambda name=name: calls.append(name))
        if fails:
            raise ValueError("wrong")
        return calls

    job = await run(api, durable_report)
    (run_id,) = job["run_ids"]
    await ask(api, f"/runs/{run_id}/$retry", {"from_step": "unknown"}, 422)
    again = await ask(api, f"/runs/{run_id}/$retry", {"from_step": "sum", "input": {"fails": False}})
    await work(api)
    assert calls == ["read", "sum", "write", "sum", "write"]
    shown = await api.get(f"/jobs/{again['job_id']}")
    assert (shown["status"], shown["attempt"]) == ("success", 2)


async def test_parent_and_children_link(api: Api) -> None:
    async def durable_child() -> int:
        return 4

    async def durable_parent(ctx: RunContext) -> object:
        return await ctx.call("durable_child")

    child = await run(api, durable_child)
    parent = await run(api, durable_parent)
    (child_id,) = parent["children"]
    assert child_id != child["id"]
    assert (await api.get(f"/jobs/{child_id}"))["parent_id"] == parent["id"]
