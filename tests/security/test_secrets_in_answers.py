"""Secrets of tasks, runs and servers are not shown to readers, under any field name."""

from typing import Any

from rota.access.store import accounts
from rota.core.clock import system_time
from rota.core.ids import new_id
from rota.core.model import AttemptResult
from rota.core.states import Status
from rota.engine import claiming, finishing
from rota.engine.runner import RunLog
from tests.app.harness import NINE, WORKER, Api
from tests.kinds.hosts.agents import make_server, pair_agent

TASK = {
    "name": "report", "command": "curl -u bot:CANARY1 https://example.org",
    "env": {"DB_PASSWORD": "CANARY2", "PLAIN": "CANARY3"}, "stdin": "CANARY4",
    "parameters": {"apiToken": "CANARY5", "day": "today"},
}  # fmt: skip


async def key_of(api: Api, role: str, *scopes: str) -> dict[str, str]:
    key = await api.db.tx(accounts.create_key, api.org_id, f"{role} {scopes}", role, NINE, scopes=list(scopes))
    return {"authorization": f"Bearer {key}"}


async def read(api: Api, path: str, headers: dict[str, str]) -> Any:
    answer = await api.call("GET", path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def test_a_task_shows_its_secrets_only_to_those_who_may_make_shell_tasks(api: Api) -> None:
    made = await api.call("POST", "/tasks", TASK)
    assert (made.status_code, made.json()["stdin"]) == (201, "CANARY4")
    viewer, operator, shell = [await key_of(api, *of) for of in (("viewer",), ("operator",), ("operator", "shell"))]
    for headers in (viewer, operator):
        for path in ("/tasks/report", "/tasks"):
            assert "CANARY" not in (await read(api, path, headers)).text
    task = (await read(api, "/tasks/report", viewer)).json()
    assert task["env"] == {"DB_PASSWORD": "***", "PLAIN": "***"}
    assert (task["stdin"], task["parameters"]) == ("***", {"apiToken": "***", "day": "today"})
    assert task["command"] == "curl -u bot:*** https://example.org"
    assert (await read(api, "/tasks/report", shell)).json()["env"] == TASK["env"]
    for field in ("env", "stdin", "parameters"):
        sent_back = await api.call("PATCH", "/tasks/report", {field: task[field]})
        assert (sent_back.status_code, sent_back.json()["errors"][0]["field"]) == (422, field)
    audit = await api.call("GET", "/audit", params={"resource": "tasks"})
    assert "report" in audit.text
    assert "CANARY" not in audit.text


async def test_the_result_and_the_artifact_of_a_run_hide_secrets(api: Api) -> None:
    await api.call("POST", "/tasks", TASK)
    await api.call("POST", "/tasks/report/$execute", {"parameters": {"clientSecret": "CANARY6"}})
    routes = await api.db.read(lambda tx: tx.exec_driver_sql("SELECT route FROM jobs").scalars().all())

    def claim(tx: Any) -> Any:
        return claiming.claim(tx, claiming.lanes(tx), worker=WORKER, routes=routes, room=9, turn=0)

    (job,) = await api.db.tx(claim)
    outcome = {"stdout": "token=CANARY7", "stderr": "Authorization: Bearer CANARY8", "exit_code": 1, "dbPwd": "CANARY9"}
    error = {"type": "X", "message": "password: CANARY10", "traceback": "http://u:CANARY11@h/"}
    ended = AttemptResult(job, Status.FAILED, "logic", NINE, new_id(), 1, NINE, outcome=outcome, error=error)
    await api.db.tx(finishing.finish, [ended], WORKER)
    viewer = await key_of(api, "viewer")
    run = (await read(api, "/runs", viewer)).json()["items"][0]
    assert run["outcome"]["dbPwd"] == "***"
    paths = ["/runs", f"/runs/{run['id']}", f"/jobs/{run['job_id']}", "/jobs", f"/runs/{run['id']}/$why", "/failing"]
    artifact = f"/artifacts/{run['id']}"
    paths += [artifact, f"{artifact}/$tree", f"{artifact}/$expand", f"{artifact}/$content"]
    for path in paths:
        assert "CANARY" not in (await read(api, path, viewer)).text, path
    stored = await api.db.read(lambda tx: str(tx.exec_driver_sql("SELECT outcome FROM runs").scalar()))
    assert "CANARY9" in stored  # programs read their own results as they are


def test_the_log_of_a_local_run_hides_secrets() -> None:
    log = RunLog("R", system_time)
    log.write("stdout", "connecting with password=CANARY\nAuthorization: Bearer CANARY\nfine\n")
    log.line("stderr", '{"apiKey": "CANARY"}')
    log.write("stdout", "clientSecret: CANARY")
    texts = [text for _, _, _, text in log.take(last=True)]
    assert texts == [
        "connecting with password=***",
        "Authorization: Bearer ***",
        "fine",
        '{"apiKey": "***"}',
        "clientSecret: ***",
    ]


async def test_the_config_of_a_server_hides_secrets_in_camel_case(api: Api) -> None:
    config = {"dbPassword": "CANARY", "clientSecret": "CANARY", "dsn": "Server=x;Pwd=CANARY;Encrypt=true", "port": 1}
    server = await make_server(api, await pair_agent(api), config=config)
    viewer = await key_of(api, "viewer")
    for path in (f"/server-instances/{server}", "/server-instances"):
        assert "CANARY" not in (await read(api, path, viewer)).text
    assert "CANARY" not in (await api.call("GET", "/audit")).text
