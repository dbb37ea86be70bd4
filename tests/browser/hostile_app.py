"""The demo program with hostile names, texts, results and errors, for tests of escaping."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from rota import Prepare, RunContext, Workflow, mutation
from tests.browser.demo_app import app
from tests.browser.live_server import LiveServer

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"
LONG = "w" * 10_000
HOSTILE = f"{EVIL}\u202e\u2066 {LONG}"
NAME = f"{EVIL} {'n' * 140}".replace("/", "")  # names are printable, have no slash, and end
LABEL = "<script>alert(1)</script>"


class HostileConnector:
    @mutation
    async def call(self, text: str) -> str:
        if "unclear" in text:
            raise ConnectionError(HOSTILE)
        return text


flow = Workflow(NAME, topics=["in", "t" * 60], description=HOSTILE[:900])


@flow.consumer(subscribe=["in"], publishes=["t" * 60])
class Take:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("in", limit=1)
        taken = {"in": [event.id for event in waiting]}
        return Prepare(reservations=taken, data=waiting and waiting[0].payload, title=HOSTILE[:200])

    async def mutate(self, ctx: Any, prepared: Prepare) -> None:
        await ctx.call("hostile.call", text=prepared.data)

    async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> Any:
        await ctx.publish("t" * 60, message_id=HOSTILE[:200], title=HOSTILE[:200])
        return HOSTILE


@flow.consumer(subscribe=["t" * 60])
class Fail:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        return Prepare()


app.connector("hostile", HostileConnector())
app.workflow(flow)


def fail() -> None:
    raise ValueError(HOSTILE)


@app.task
async def hostile_steps(ctx: RunContext) -> None:
    """Records a step that failed, an approval and a signal with hostile names."""
    try:
        await ctx.step(f"{EVIL} {'s' * 140}", fail)
    except ValueError:
        await ctx.approval("operator", title=HOSTILE[:200])
    await ctx.wait_for(EVIL, key=EVIL)


def create_hostile_data(live_server: LiveServer) -> list[str]:
    """Create workflows, pipelines and hosts with hostile data; return the pages that show them."""
    flow = next(item for item in live_server.call("GET", "/workflows")["items"] if item["name"] == NAME)
    events = f"/workflows/{flow['id']}/topics/in/events"
    for word in (EVIL, f"unclear {HOSTILE}"):
        live_server.call("POST", events, {"message_id": word[:190], "title": word[:200], "payload": word})
    live_server.until(f"/workflows/{flow['id']}", lambda workflow: workflow["status"] == "needs_attention")
    sql = f"SELECT error('{HOSTILE.replace(chr(39), '')}') AS {'c' * 60}"
    table = {"namespace": "n" * 60, "layer": "bronze", "name": "p" * 60, "sql": sql, "description": HOSTILE[:900]}
    live_server.call("POST", "/pipelines", table)
    path = f"/pipelines/{table['namespace']}/bronze/{table['name']}"
    job = live_server.call("POST", f"{path}/$run")["job_id"]
    live_server.until(f"/jobs/{job}", lambda state: state["finished_at"])
    return ["/workflows", f"/workflows/{flow['id']}", "/pipelines", path, f"/runs/{job}", *hosts(live_server)]


def create_hostile_waits(live_server: LiveServer) -> dict[str, str]:
    """Create a durable job, a job after it, a firing alarm, a freeze window and a calendar with hostile names; return
    the pages that show them by title."""
    name = NAME[:150]
    job = live_server.call("POST", "/jobs", {"target": "hostile_steps"})["job_id"]
    live_server.call("POST", "/jobs", {"target": "tick", "after": [job], "when": "any"})
    live_server.schedule(f"{name} alarmed", "fails", input={"message": HOSTILE[:300]})
    live_server.call(
        "POST", "/alarms", {"name": name, "when": "failed_in_a_row >= 1", "on": f"schedule:{name} alarmed"}
    )
    live_server.run(f"{name} alarmed")
    window = {
        "name": name,
        "reason": HOSTILE[:900],
        "ends_at": str(datetime.now(UTC) + timedelta(days=1)),
        "tag": LABEL,
    }
    window_id = live_server.call("POST", "/freeze-windows", window)["id"]
    calendar = live_server.call(
        "POST", "/calendars", {"name": name, "description": EVIL, "dates": [f"{datetime.now(UTC):%Y}-12-24"]}
    )
    live_server.until(f"/jobs/{job}", lambda state: state["status"] == "paused")
    live_server.until("/alarm-events?state=firing", lambda events: events["items"])
    return {
        "run": f"/runs/{job}",
        "now": "/",
        "alarms": "/alarms",
        "freeze windows": "/freeze-windows",
        "freeze window": f"/freeze-windows/{window_id}",
        "calendar": f"/calendars/{calendar['id']}",
        "runs": "/runs?" + urlencode({"target": "fails", "error": "alert", "within": "24h"}),
    }


def hosts(live_server: LiveServer) -> list[str]:
    """Act as an agent that sends hostile names, job types, metrics and results; return the pages that show them."""
    token = live_server.call("POST", "/pairing-tokens")["token"]
    made = live_server.call("POST", "/pair", {"token": token, "name": NAME}, key="none")
    looks, changes = {"read_only": True, "schema": {"properties": {NAME: {}}}}, {"read_only": False, "schema": {}}
    facts = {"version": "<b>9</b>", "pid": 7, "room": 8, "job_types": {NAME: looks, "change": changes}, "journal": []}
    session = live_server.call("POST", "/register", facts, key=made["agent_key"])["session"]
    labels = {LABEL: HOSTILE[:150].replace("=", "").replace(",", "")}
    server = {"host_id": made["host_id"], "name": NAME, "type": NAME, "labels": labels, "config": {"a": HOSTILE}}
    server_id = live_server.call("POST", "/server-instances", server)["id"]
    ask = {"server_instance_id": server_id, "payload": {}}
    failed = live_server.call("POST", "/host-jobs", {**ask, "job_type": NAME})["job_id"]
    unclear = live_server.call("POST", "/host-jobs", {**ask, "job_type": "change"})["job_id"]
    batch = live_server.call("POST", "/batches", {"labels": labels, "job_type": NAME})["batch_id"]
    known: list[str] = []
    while len(known) < 3:
        figures = {NAME: HOSTILE[:1000], "load": [HOSTILE[:1000]]}
        poll = {"session": session, "room": 8, "known": known, "stopping": [], "metrics": figures, "wait_seconds": 5}
        for job in live_server.call("POST", "/poll", poll, key=made["agent_key"])["jobs"]:
            known.append(f"{job['job_id']}.{job['fence']}")
            claim = {"job_id": job["job_id"], "fence": job["fence"]}
            if job["job_id"] == unclear:
                facts["journal"] = [{**claim, "state": "unknown"}]
            else:
                error = {"type": NAME[:100], "message": HOSTILE, "traceback": HOSTILE}
                result = {
                    "status": "failed",
                    "error": error,
                    "outcome": {EVIL: HOSTILE},
                    "lines": [["stdout", HOSTILE]],
                }
                live_server.call("POST", "/result", {**claim, **result}, key=made["agent_key"])
    live_server.call("POST", "/register", facts, key=made["agent_key"])
    return ["/hosts", f"/hosts/{made['host_id']}", f"/batches/{batch}", f"/runs/{failed}", f"/runs/{unclear}"]
