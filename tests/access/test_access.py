"""Who may call what: each route, by each kind of caller. A route that is not in the table fails the test."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any

from starlette.types import Message

from rota import Prepare, Workflow, every
from rota.access.store import accounts, logins
from rota.billing import store as billing_store
from rota.core.catch_up import ALL_SLOTS, CatchUpLimits, plan_catch_up
from rota.core.ids import new_id
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import alarm_events
from rota.engine import billing_accounts, catch_ups, orgs, signal_hooks
from rota.engine import schedules as schedule_rows
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store import hosts
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.workflows.manager import WorkflowManager
from rota.kinds.workflows.scripts import store as scripts_store
from tests.app.harness import NINE, Api

CALLERS = ("no key", "viewer", "operator", "admin", "other org's admin", "expired key", "revoked key")
Row = tuple[int, ...]


def row(viewer: int, operator: int, admin: int, other: int) -> Row:
    return (401, viewer, operator, admin, other, 401, 401)


OPEN = (200,) * 7
READ = row(200, 200, 200, 404)  # a thing, by its id
LIST = row(200, 200, 200, 200)  # the other org's list is its own: nothing of ours is in it
ADMIN_READ = row(403, 403, 200, 404)
SERVICE = (401,) * 7  # no key opens it
ADMIN_LIST = row(403, 403, 200, 200)

SCHEDULE = {"target": "hello", "cron_expression": "0 12 * * *"}
PIPELINE = {"namespace": "mine", "layer": "bronze", "sql": "SELECT 1 AS a"}
SPAN = {"from": "2026-05-01T00:00:00Z", "to": "2026-05-03T00:00:00Z"}
SHELL = {"job_type": "shell", "payload": {"command": "true"}}
USER = {"name": "x", "password": "long enough", "role": "viewer"}

# route: what each caller gets, and the body that is sent. `{schedule}`, `{run}` … are ours and new for each call;
# `{fresh}` is an unused name.
TABLE: dict[str, tuple[Row, Any]] = {
    "GET /health/live": (OPEN, None),
    "GET /health/ready": ((503,) * 7, None),  # for all: no worker is alive here
    "GET /metrics": (OPEN, None),  # on loopback
    "POST /api/v1/schedules": (row(403, 201, 201, 422), SCHEDULE),  # the other org has no task `hello`
    "GET /api/v1/schedules": (LIST, None),
    "POST /api/v1/schedules/$bulk": (row(403, 201, 201, 422), {"items": [SCHEDULE]}),
    "POST /api/v1/schedules/$preview": (LIST, {"cron_expression": "0 12 * * *"}),
    "POST /api/v1/schedules/$pause": (row(403, 200, 200, 200), {"tag": "none"}),
    "POST /api/v1/schedules/$resume": (row(403, 200, 200, 200), {"tag": "none"}),
    "POST /api/v1/schedules/$enable": (row(403, 200, 200, 200), {"tag": "none"}),
    "POST /api/v1/schedules/$disable": (row(403, 200, 200, 200), {"tag": "none"}),
    "POST /api/v1/schedules/$delete": (row(403, 200, 200, 200), {"tag": "none"}),
    "GET /api/v1/schedules/{schedule}": (READ, None),
    "PUT /api/v1/schedules/{schedule}": (row(403, 200, 200, 404), SCHEDULE),
    "PATCH /api/v1/schedules/{schedule}": (row(403, 200, 200, 404), {"description": "x"}),
    "DELETE /api/v1/schedules/{schedule}": (row(403, 204, 204, 404), None),
    "POST /api/v1/schedules/{schedule}/$run": (row(403, 202, 202, 404), {}),
    "POST /api/v1/schedules/{schedule}/$pause": (row(403, 200, 200, 404), {}),
    "POST /api/v1/schedules/{schedule}/$resume": (row(403, 409, 409, 404), {}),  # it is not paused
    "POST /api/v1/schedules/{schedule}/$skip-next": (row(403, 200, 200, 404), {}),
    "POST /api/v1/schedules/{schedule}/$backfill": (row(403, 200, 200, 404), SPAN),
    "GET /api/v1/schedules/{schedule}/$next": (READ, None),
    "GET /api/v1/schedules/{schedule}/$catch-up": (READ, None),
    "POST /api/v1/schedules/{schedule}/$diff": (READ, {"cron_expression": "0 13 * * *"}),
    "GET /api/v1/schedules/{schedule}/runs": (READ, None),
    "GET /api/v1/schedules/{schedule}/slots": (READ, None),
    "GET /api/v1/files": (LIST, None),
    "POST /api/v1/files/$plan": (row(403, 200, 200, 200), {"resources": {}}),
    "POST /api/v1/files/$apply": (row(403, 200, 200, 200), {"resources": {}}),
    "GET /api/v1/runs": (LIST, None),
    "GET /api/v1/runs/{run}": (READ, None),
    "GET /api/v1/runs/{run}/logs": (READ, None),
    "GET /api/v1/runs/{run}/$why": (READ, None),
    "GET /api/v1/failing": (LIST, None),
    "POST /api/v1/runs/$retry": (row(403, 200, 200, 200), {"filter": {}, "dry_run": True}),
    "POST /api/v1/runs/$cancel": (row(403, 200, 200, 200), {"filter": {}, "dry_run": True}),
    "POST /api/v1/runs/$delete": (row(403, 403, 200, 200), {"filter": {}, "dry_run": True}),
    "POST /api/v1/runs/{run}/$acknowledge": (row(403, 409, 409, 404), {}),  # it has not failed
    "POST /api/v1/runs/{run}/$unacknowledge": (row(403, 409, 409, 404), None),
    "POST /api/v1/runs/{run}/$cancel": (row(403, 409, 409, 404), None),  # it has ended
    "POST /api/v1/runs/{run}/$approve": (row(409, 409, 409, 404), {}),  # it waits for nothing; who may is asked then
    "POST /api/v1/runs/{run}/$reject": (row(409, 409, 409, 404), {}),
    "POST /api/v1/runs/{run}/$resolve": (row(403, 409, 409, 404), {"resolution": "skip"}),
    "POST /api/v1/signals": (row(403, 202, 202, 202), {"topic": "paid"}),
    "POST /api/v1/runs/{run}/$retry": (row(403, 202, 202, 404), None),
    "POST /api/v1/jobs": (row(403, 202, 202, 400), {"target": "hello"}),
    "GET /api/v1/jobs": (LIST, None),
    "GET /api/v1/jobs/{job}": (READ, None),
    "DELETE /api/v1/jobs/{job}": (row(403, 204, 204, 404), None),
    "POST /api/v1/jobs/{job}/$cancel": (row(403, 202, 202, 404), None),
    "GET /api/v1/jobs/{job}/$stream": (READ, None),
    "GET /api/v1/events": (LIST, None),
    "GET /api/v1/tasks": (LIST, None),
    "POST /api/v1/tasks": (row(403, 403, 201, 403), {"name": "{fresh}", "command": "true"}),  # the other may no shell
    "GET /api/v1/tasks/{task}": (READ, None),
    "PUT /api/v1/tasks/{task}": (row(403, 403, 200, 404), {"command": "false"}),
    "PATCH /api/v1/tasks/{task}": (row(403, 200, 200, 404), {"enabled": False}),
    "DELETE /api/v1/tasks/{task}": (row(403, 403, 204, 404), None),
    "GET /api/v1/tasks/{function}/$schema": (READ, None),
    "POST /api/v1/tasks/{task}/$execute": (row(403, 202, 202, 400), None),
    "POST /api/v1/tasks/{task}/$schedule": (row(403, 201, 201, 404), {"cron_expression": "0 12 * * *"}),
    "GET /api/v1/tasks/{task}/$schedules": (READ, None),
    "PATCH /api/v1/tasks/{task}/$schedules/{task_schedule}": (row(403, 200, 200, 404), {"enabled": False}),
    "DELETE /api/v1/tasks/{task}/$schedules/{task_schedule}": (row(403, 204, 204, 404), None),
    "POST /api/v1/grants": (row(403, 201, 201, 201), {"scopes": ["task:execute:hello"]}),
    "GET /api/v1/grants": (LIST, None),
    "GET /api/v1/grants/$forecast": (LIST, None),
    "GET /api/v1/grants/{grant}": (READ, None),
    "POST /api/v1/grants/{grant}/$revoke": (row(403, 200, 200, 404), None),
    "GET /api/v1/billing/account": (LIST, None),  # each their own
    "GET /api/v1/billing/account?owner_id={user}": (ADMIN_READ, None),
    "GET /api/v1/billing/accounts": (ADMIN_LIST, None),
    "POST /api/v1/billing/accounts/{account}/$close": (row(403, 403, 200, 404), None),
    "POST /api/v1/billing/accounts/{account}/$reopen": (row(403, 403, 200, 404), None),
    "POST /api/v1/billing/credits": (row(403, 403, 403, 403), {"amount_credits": 5, "reference": "{fresh}"}),  # 2 orgs
    "GET /api/v1/billing/ledger": (LIST, None),
    "GET /api/v1/billing/ledger?account_id={account}": (ADMIN_READ, None),
    "GET /api/v1/billing/receipts": (LIST, None),
    "GET /api/v1/billing/receipts?account_id={account}": (ADMIN_READ, None),
    "GET /api/v1/billing/usage": (LIST, None),
    "GET /api/v1/billing/usage?account_id={account}": (ADMIN_READ, None),
    "GET /api/v1/billing/virtual-keys": (LIST, None),
    "GET /api/v1/billing/virtual-keys?account_id={account}": (ADMIN_READ, None),
    "POST /api/v1/billing/virtual-keys": (row(403, 201, 201, 201), {"label": "x"}),
    "POST /api/v1/billing/virtual-keys/{own_key}/$make-default": (row(403, 200, 200, 404), None),
    "POST /api/v1/billing/virtual-keys/{own_key}/$deactivate": (row(403, 200, 200, 404), None),
    "POST /api/v1/billing/virtual-keys/{virtual_key}/$deactivate": (row(403, 403, 200, 404), None),  # another user's
    "GET /api/internal/graphs": (SERVICE, None),
    "POST /api/internal/graphs/{graph_id}:run": (SERVICE, {}),
    "GET /api/v1/graphs": (LIST, None),
    "POST /api/v1/graphs/{graph}/$run": (row(403, 202, 202, 404), {"input": {"say": "hi"}}),
    "POST /api/v1/pipelines": (row(403, 201, 201, 201), {**PIPELINE, "name": "{fresh}"}),
    "GET /api/v1/pipelines": (LIST, None),
    "GET /api/v1/pipelines/$graph": (LIST, None),
    "GET /api/v1/pipelines/$namespaces": (LIST, None),
    "GET /api/v1/pipelines/{namespace}/{layer}/{pipeline}": (READ, None),
    "PUT /api/v1/pipelines/{namespace}/{layer}/{pipeline}": (row(403, 200, 200, 404), {"sql": "SELECT 2 AS b"}),
    "DELETE /api/v1/pipelines/{namespace}/{layer}/{pipeline}": (row(403, 204, 204, 404), None),
    "GET /api/v1/pipelines/{namespace}/{layer}/{pipeline}/versions": (READ, None),
    "POST /api/v1/pipelines/{namespace}/{layer}/{pipeline}/$run": (row(403, 202, 202, 404), None),
    "POST /api/v1/pipelines/{namespace}/{layer}/{pipeline}/$backfill": (
        row(403, 422, 422, 404),  # it has no partitions
        {"from": "2026-05-01", "to": "2026-05-02"},
    ),
    "POST /api/v1/pipelines/{namespace}/{layer}/{pipeline}/$preview": (row(403, 200, 200, 404), None),
    "POST /api/v1/pipelines/{namespace}/{layer}/{pipeline}/$validate": (row(403, 200, 200, 404), None),
    "GET /api/v1/pipelines/{namespace}/{layer}/{pipeline}/triggers": (READ, None),
    "POST /api/v1/pipelines/{namespace}/{layer}/{pipeline}/triggers": (row(403, 201, 201, 404), {"type": "webhook"}),
    "PATCH /api/v1/pipelines/{namespace}/{layer}/{pipeline}/triggers/{trigger}": (
        row(403, 200, 200, 404),
        {"enabled": False},
    ),
    "DELETE /api/v1/pipelines/{namespace}/{layer}/{pipeline}/triggers/{trigger}": (row(403, 204, 204, 404), None),
    "POST /api/v1/webhooks": ((401, 404, 404, 404, 404, 404, 404), None),  # a key is no webhook's token
    "POST /api/v1/webhooks/{hook}": ((401, 401, 401, 401, 401, 401, 401), None),  # a key is no signature
    "POST /api/v1/signal-hooks": (row(403, 201, 201, 201), {"name": "{fresh}", "topic": "paid"}),
    "GET /api/v1/signal-hooks": (LIST, None),
    "GET /api/v1/signal-hooks/{hook}": (READ, None),
    "POST /api/v1/signal-hooks/{hook}/$rotate": (row(403, 200, 200, 404), None),
    "DELETE /api/v1/signal-hooks/{hook}": (row(403, 204, 204, 404), None),
    "GET /api/v1/workflows": (LIST, None),
    "POST /api/v1/workflows": (row(403, 422, 422, 422), {"script": " "}),  # what a right one does: test_scripts_api.py
    "POST /api/v1/workflows/$check": (row(403, 422, 422, 422), {"script": " "}),
    "GET /api/v1/workflows/{workflow}": (READ, None),
    "PUT /api/v1/workflows/{workflow}": (row(403, 422, 422, 404), {"script": "("}),  # a blank one: 422 to all
    "DELETE /api/v1/workflows/{script}": (row(403, 204, 204, 404), None),
    "GET /api/v1/workflows/{script}/versions": (READ, None),
    "GET /api/v1/workflows/{script}/versions/{version}": (READ, None),
    "POST /api/v1/workflows/{script}/versions/{version}/$accept": (row(403, 409, 409, 404), None),  # it is live
    "POST /api/v1/workflows/{script}/versions/{version}/$reject": (row(403, 409, 409, 404), {}),
    "POST /api/v1/workflows/{script}/$rollback": (row(403, 404, 404, 404), {"version": "9.9"}),
    "GET /api/v1/workflows/{workflow}/handlers": (READ, None),
    "GET /api/v1/workflows/{workflow}/runs": (READ, None),
    "GET /api/v1/workflows/{workflow}/events": (READ, None),
    "GET /api/v1/workflows/{workflow}/inputs": (READ, None),
    "GET /api/v1/workflows/{workflow}/outputs": (READ, None),
    "POST /api/v1/workflows/{workflow}/topics/{topic}/events": (row(403, 201, 201, 404), {"message_id": "1"}),
    "POST /api/v1/workflows/{workflow}/topics/{topic}/events/$bulk": (
        row(403, 201, 201, 404),
        {"items": [{"message_id": "2"}]},
    ),
    "POST /api/v1/workflows/{workflow}/$run": (row(403, 202, 202, 404), None),
    "POST /api/v1/workflows/{workflow}/$pause": (row(403, 200, 200, 404), {}),
    "POST /api/v1/workflows/{workflow}/$resume": (row(403, 409, 409, 404), None),  # it is not paused
    "POST /api/v1/workflows/{workflow}/$resolve": (row(403, 409, 409, 404), {"resolution": "skip"}),  # nothing is stuck
    "POST /api/v1/workflows/{our_workflow}/events/{event}/$skip": (row(403, 200, 200, 404), None),
    "POST /api/agent/pair": (SERVICE, {"token": "rota_pair_x", "name": "x"}),
    "POST /api/agent/register": (SERVICE, {}),
    "POST /api/agent/poll": (SERVICE, {}),
    "POST /api/agent/progress": (SERVICE, {}),
    "POST /api/agent/result": (SERVICE, {}),
    "POST /api/v1/pairing-tokens": (row(403, 403, 201, 201), None),
    "GET /api/v1/hosts": (LIST, None),
    "GET /api/v1/hosts/{host}": (READ, None),
    "PATCH /api/v1/hosts/{host}": (row(403, 200, 200, 404), {"labels": {"zone": "eu"}}),
    "DELETE /api/v1/hosts/{host}": (row(403, 403, 204, 404), None),
    "POST /api/v1/hosts/{host}/$rotate-key": (row(403, 403, 200, 404), None),
    "GET /api/v1/server-instances": (LIST, None),
    "POST /api/v1/server-instances": (row(403, 201, 201, 404), {"host_id": "{our_host}", "name": "{fresh}"}),
    "GET /api/v1/server-instances/{server}": (READ, None),
    "PATCH /api/v1/server-instances/{server}": (row(403, 200, 200, 404), {"type": "x"}),
    "DELETE /api/v1/server-instances/{server}": (row(403, 204, 204, 404), None),
    "POST /api/v1/host-jobs": (row(403, 403, 202, 404), {"server_instance_id": "{our_server}", **SHELL}),
    "GET /api/v1/host-jobs": (LIST, None),
    "GET /api/v1/host-jobs/{host_job}": (READ, None),
    "POST /api/v1/host-jobs/{host_job}/$cancel": (row(403, 202, 202, 404), None),
    "POST /api/v1/host-jobs/{host_job}/$resolve": (row(403, 409, 409, 404), {"resolution": "applied"}),  # none asks
    "POST /api/v1/batches": (row(403, 403, 202, 422), {"labels": {"role": "web"}, **SHELL}),  # the other org has none
    "GET /api/v1/batches": (LIST, None),
    "GET /api/v1/batches/{batch}": (READ, None),
    "POST /api/v1/batches/{batch}/$cancel": (row(403, 202, 202, 404), None),
    "GET /api/v1/artifacts": (LIST, None),
    "GET /api/v1/artifacts/{run}": (READ, None),
    "GET /api/v1/artifacts/{run}/$tree": (READ, None),
    "GET /api/v1/artifacts/{run}/$expand": (READ, None),
    "GET /api/v1/artifacts/{run}/$content": (READ, None),
    "GET /api/v1/slots": (LIST, None),
    "GET /api/v1/slots/$audit": (LIST, None),
    "GET /api/v1/slots/$why?schedule={skipped}&slot=2026-05-04T12:00:00Z": (READ, None),
    "GET /api/v1/workers": (LIST, None),
    "GET /api/v1/queues": (LIST, None),
    "GET /api/v1/queues/$wanted": (LIST, None),
    "GET /api/v1/queues/{queue}": (READ, None),
    "PUT /api/v1/queues/{queue}": (row(403, 200, 200, 200), {"max_running": 1}),  # the other org's own, by its name
    "PATCH /api/v1/queues/{queue}": (row(403, 200, 200, 200), {"max_running": 1}),
    "GET /api/v1/views": (LIST, None),
    "POST /api/v1/views": (row(201, 201, 201, 201), {"name": "{fresh}", "filter": {}}),
    "GET /api/v1/views/{view}": (READ, None),
    "PATCH /api/v1/views/{view}": (row(200, 200, 200, 404), {}),  # these keys act for the same user
    "DELETE /api/v1/views/{view}": (row(204, 204, 204, 404), None),
    "GET /api/v1/catch-ups": (LIST, None),
    "GET /api/v1/catch-ups/{catch_up}": (READ, None),
    "POST /api/v1/catch-ups/{catch_up}/$approve": (row(403, 403, 200, 404), {}),
    "POST /api/v1/catch-ups/{catch_up}/$reject": (row(403, 403, 200, 404), {}),
    "GET /api/v1/calendars": (LIST, None),
    "POST /api/v1/calendars": (row(403, 201, 409, 201), {"name": "days", "dates": ["2027-05-17"]}),  # the operator's
    "GET /api/v1/calendars/{calendar}": (READ, None),
    "PATCH /api/v1/calendars/{calendar}": (row(403, 200, 200, 404), {}),
    "DELETE /api/v1/calendars/{calendar}": (row(403, 204, 204, 404), None),
    "POST /api/v1/simulate": (
        row(200, 200, 200, 200),
        {"from": "2026-05-05T00:00:00Z", "to": "2026-05-06T00:00:00Z"},
    ),
    "GET /api/v1/freeze-windows": (LIST, None),
    "POST /api/v1/freeze-windows": (row(403, 201, 409, 201), {"name": "stop", "ends_at": "2026-12-01T00:00:00Z"}),
    "GET /api/v1/freeze-windows/{freeze_window}": (READ, None),
    "PATCH /api/v1/freeze-windows/{freeze_window}": (row(403, 200, 200, 404), {"reason": "x"}),
    "DELETE /api/v1/freeze-windows/{freeze_window}": (row(403, 204, 204, 404), None),
    "GET /api/v1/alarms": (LIST, None),
    "POST /api/v1/alarms": (row(403, 201, 409, 201), {"name": "late", "when": "late > 5m"}),  # the operator's
    "GET /api/v1/alarms/{alarm}": (READ, None),
    "PATCH /api/v1/alarms/{alarm}": (row(403, 200, 200, 404), {"when": "late > 6m"}),
    "DELETE /api/v1/alarms/{alarm}": (row(403, 204, 204, 404), None),
    "POST /api/v1/alarms/{alarm}/$test": (row(403, 202, 202, 404), None),
    "GET /api/v1/alarm-channels": (LIST, None),
    "POST /api/v1/alarm-channels": (
        row(403, 201, 409, 201),  # the operator's
        {"name": "ops", "type": "email", "address": "ops@example.org"},
    ),
    "GET /api/v1/alarm-channels/{alarm_channel}": (READ, None),
    "PATCH /api/v1/alarm-channels/{alarm_channel}": (row(403, 200, 200, 404), {"test_seconds": 86400}),
    "DELETE /api/v1/alarm-channels/{alarm_channel}": (row(403, 204, 204, 404), None),
    "POST /api/v1/alarm-channels/{alarm_channel}/$test": (row(403, 202, 202, 404), None),
    "GET /api/v1/alarm-events": (LIST, None),
    "POST /api/v1/alarm-events/{alarm_event}/$acknowledge": (row(403, 200, 200, 404), None),
    "GET /api/v1/freeze": (LIST, None),
    "GET /api/v1/status": (LIST, None),
    "PUT /api/v1/freeze": (row(403, 200, 200, 200), {"reason": "x"}),
    "DELETE /api/v1/freeze": (row(403, 204, 409, 204), None),  # the operator has ended it
    "POST /api/v1/orgs": (row(403, 403, 403, 403), {"name": "x", "slug": "{fresh}"}),  # the first key alone may
    "PATCH /api/v1/orgs/{slug}": (row(403, 403, 403, 403), {"shell": True}),
    "GET /api/v1/orgs": (LIST, None),
    "POST /api/v1/users": (row(403, 403, 201, 201), {**USER, "email": "{fresh}@example.org"}),
    "GET /api/v1/users": (ADMIN_LIST, None),
    "GET /api/v1/users/{user}": (ADMIN_READ, None),
    "PATCH /api/v1/users/{user}": (ADMIN_READ, {"name": "x"}),
    "POST /api/v1/users/me/$password": (  # the users of these keys have none
        row(409, 409, 409, 409),
        {"current_password": "correct horse", "new_password": "battery staple"},
    ),
    "DELETE /api/v1/users/{user}": (row(403, 403, 204, 404), None),
    "POST /api/v1/api-keys": (row(403, 403, 201, 201), {"name": "x", "role": "viewer"}),
    "GET /api/v1/api-keys": (ADMIN_LIST, None),
    "GET /api/v1/api-keys/{api_key}": (ADMIN_READ, None),
    "DELETE /api/v1/api-keys/{api_key}": (row(403, 403, 204, 404), None),
    "POST /api/v1/login-links": (row(201, 201, 201, 201), None),  # each their own
    "GET /api/v1/sessions": (LIST, None),
    "POST /api/v1/sessions/$end": (LIST, {}),
    "POST /api/v1/service-accounts": (row(403, 403, 201, 201), {"name": "{fresh}", "role": "viewer"}),
    "GET /api/v1/service-accounts": (ADMIN_LIST, None),
    "GET /api/v1/service-accounts/{service_account}": (ADMIN_READ, None),
    "PATCH /api/v1/service-accounts/{service_account}": (ADMIN_READ, {"role": "viewer"}),
    "DELETE /api/v1/service-accounts/{service_account}": (row(403, 403, 204, 404), None),
    "DELETE /api/v1/sessions/{session}": (row(404, 404, 204, 404), None),  # another user's
    "GET /api/v1/audit": (ADMIN_LIST, None),
}
SILENT = {  # these change nothing here
    f"POST /api/v1/schedules/{verb}" for verb in ("$preview", "$pause", "$resume", "$enable", "$disable", "$delete")
}
SILENT |= {"POST /api/v1/files/$plan", "POST /api/v1/files/$apply"}  # without entries
SILENT |= {
    "POST /api/v1/simulate",
    "POST /api/v1/schedules/{schedule}/$diff",
    "POST /api/v1/workflows/$check",
    "POST /api/v1/sessions/$end",
    "POST /api/v1/runs/$retry",
    "POST /api/v1/runs/$cancel",
    "POST /api/v1/runs/$delete",
}
SILENT |= {f"POST /api/v1/pipelines/{{namespace}}/{{layer}}/{{pipeline}}/{verb}" for verb in ("$preview", "$validate")}
CANARY = "canary"  # in the name of everything that is ours
numbers = itertools.count(1)


async def test_each_route_answers_each_caller_as_the_table_says(api: Api) -> None:
    routes = {f"{method.upper()} {path}" for path, methods in api.app.openapi()["paths"].items() for method in methods}
    assert {generic(route) for route in routes} == {generic(route) for route in TABLE}
    hidden = [
        r for route in api.app.routes for r in getattr(route, "original_router", route).__dict__.get("routes", [])
    ]
    assert all(route.include_in_schema for route in hidden)
    keys = await make_callers(api)
    wrong = []
    for route, (expected, body) in TABLE.items():
        for caller, status in zip(CALLERS, expected, strict=True):
            method, path = route.split(" ")
            path = await fill(api, path)
            sent = None if body is None else json.loads(json.dumps(body).replace("{fresh}", f"fresh-{next(numbers)}"))
            if sent and "{our_" in str(sent):
                sent = {
                    name: await fill(api, str(value)) if "{our_" in str(value) else value
                    for name, value in sent.items()
                }
            before = await api.count("audit_log")
            answered, text = await ask(api, method, path, keys[caller], sent)
            if answered != status:
                wrong.append(f"{route} as {caller}: {answered}, not {status}: {text[:200]}")
            if caller.startswith("other") and CANARY in text:
                wrong.append(f"{route} as {caller} leaks our data: {text[:200]}")
            entries = await api.count("audit_log") - before
            if entries != (answered < 300 and method != "GET" and route not in SILENT):
                wrong.append(f"{route} as {caller}: {entries} lines in the audit log")
    assert wrong == []


def generic(route: str) -> str:
    """A route without the names of its parameters."""
    return "/".join("{}" if part.startswith("{") else part for part in route.partition("?")[0].split("/"))


async def make_callers(api: Api) -> dict[str, str | None]:
    def step(tx: Tx) -> dict[str, str | None]:
        keys: dict[str, str | None] = {"no key": None}
        for role in ("viewer", "operator", "admin"):
            keys[role] = accounts.create_key(tx, api.org_id, role, role, NINE)
        keys["other org's admin"] = accounts.create_org(tx, "Other", "other", NINE)[1]
        end = NINE - timedelta(seconds=1)
        keys["expired key"] = accounts.create_key(tx, api.org_id, "expired", "admin", NINE, expires_at=end)
        key_id, keys["revoked key"] = accounts.issue_key(tx, api.org_id, "revoked", "admin", NINE)
        accounts.revoke_key(tx, api.org_id, key_id, NINE)
        return keys

    return await api.db.tx(step)


async def fill(api: Api, path: str) -> str:
    """The path with new things of ours in the place of its parameters."""
    makers: dict[str, Callable[[Api, str], Awaitable[str]]] = {
        "schedule": make_schedule,
        "task": make_task,
        "job": make_job,
        "run": make_run,
        "user": make_user,
        "service_account": make_service_account,
        "hook": make_hook,
        "api_key": make_key,
        "session": make_session,
        "skipped": make_skipped,
        "queue": make_queue,
        "calendar": make_calendar,
        "catch_up": make_catch_up,
        "freeze_window": make_freeze_window,
        "alarm": make_alarm,
        "alarm_channel": make_alarm_channel,
        "alarm_event": make_alarm_event,
        "view": make_view,
        "workflow": make_workflow,
        "script": make_script,
        "host": make_host,
        "our_host": make_host,
        "server": make_server,
        "our_server": make_server,
        "host_job": make_host_job,
        "batch": make_batch,
        "grant": make_grant,
        "account": make_account,
        "virtual_key": make_virtual_key,
        "own_key": make_own_key,
    }
    if "{task_schedule}" in path:
        task = await make_task(api, f"{CANARY}-{next(numbers)}")
        body = {"name": f"{CANARY}-{next(numbers)}", "target": task, "cron_expression": "0 12 * * *"}
        (made,) = await api.engine.create_schedules(api.org_id, [body])
        path = path.replace("{task}", task).replace("{task_schedule}", made.id)
    path = path.replace("{function}", "hello").replace("{graph}", "python:echo").replace("{topic}", "in")
    path = path.replace("{version}", "1.0").replace("{slug}", "default")
    if "{pipeline}" in path:
        own_pipeline = {"namespace": "ours", "layer": "gold", "name": f"p{next(numbers)}"}  # as callers name it
        manager = PipelineManager(api.engine, api.org_id)
        name = (await manager.create({**own_pipeline, "sql": "SELECT 1 AS a", "description": CANARY}))["path"]
        path = path.replace("{namespace}/{layer}/{pipeline}", name)
        path = path.replace("{trigger}", (await manager.add_trigger(name, {"type": "webhook"}))[0]["id"])
    if "{event}" in path:
        flow = await make_workflow(api, f"{CANARY}-{next(numbers)}")
        event, _ = await WorkflowManager(api.engine, api.org_id).publish(flow, "in", message_id="1")
        path = path.replace("{our_workflow}", flow).replace("{event}", event)
    for name, make in makers.items():
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", await make(api, f"{CANARY}-{next(numbers)}"))
    return path


async def make_schedule(api: Api, name: str) -> str:
    (made,) = await api.engine.create_schedules(api.org_id, [{**SCHEDULE, "name": name}])
    return made.id


async def make_skipped(api: Api, name: str) -> str:
    """A schedule with a slot in the books."""
    schedule_id = await make_schedule(api, name)
    await api.engine.skip_next(api.org_id, schedule_id)
    return schedule_id


async def make_queue(api: Api, name: str) -> str:
    name = name.removeprefix(f"{CANARY}-")  # callers name it themselves, so the answers do
    await api.engine.set_queue(api.org_id, name, max_running=5, paused=False)
    return name


async def make_view(api: Api, name: str) -> str:
    made = await api.call("POST", "/views", {"name": name, "filter": {}, "visibility": "org"})
    return str(made.json()["id"])


async def make_calendar(api: Api, name: str) -> str:
    made = await api.call("POST", "/calendars", {"name": name, "dates": ["2027-05-17"]})
    return str(made.json()["id"])


async def make_catch_up(api: Api, name: str) -> str:
    """Hold a catch-up of a new schedule."""
    schedule = await make_schedule(api, name)

    def step(tx: Tx) -> str:
        slots = [NINE - timedelta(hours=hours) for hours in (2, 1)]
        plan = plan_catch_up(slots, ALL_SLOTS, None, CatchUpLimits(slots=1), NINE)
        stored = schedule_rows.get(tx, api.org_id, schedule)
        return catch_ups.hold(tx, stored, plan, catch_ups.CatchUpSource.BACKFILL, NINE)

    return await api.db.tx(step)


async def make_freeze_window(api: Api, name: str) -> str:
    body = {"name": name, "starts_at": "2027-05-17T00:00:00Z", "ends_at": "2027-05-18T00:00:00Z"}
    return str((await api.call("POST", "/freeze-windows", body)).json()["id"])


async def make_alarm(api: Api, name: str) -> str:
    await make_alarm_channel(api, name)
    made = await api.call("POST", "/alarms", {"name": name, "when": "missed", "notify": [name]})
    return str(made.json()["id"])


async def make_alarm_channel(api: Api, name: str) -> str:
    made = await api.call("POST", "/alarm-channels", {"name": name, "type": "email", "address": "ops@example.org"})
    return str(made.json()["id"])


async def make_alarm_event(api: Api, name: str) -> str:
    """A firing event."""
    alarm_id, event_id, now = await make_alarm(api, name), new_id(), api.clock.now()
    ids = {"id": event_id, "org_id": api.org_id, "alarm_id": alarm_id, "subject": name, "name": name}
    state = {"state": "firing", "text": "is late", "place": "", "fired_at": now, "notified": 0, "job_ids": []}
    await api.db.tx(insert_rows, alarm_events, [{**ids, **state}])
    return event_id


async def make_task(api: Api, name: str) -> str:
    answer = await api.call("POST", "/tasks", {"name": name, "command": "true"})
    return str(answer.json()["id"])


async def make_job(api: Api, name: str) -> str:
    return await api.engine.run_now(api.org_id, await make_schedule(api, name))


async def make_run(api: Api, name: str) -> str:
    job_id = await make_job(api, name)
    begun = await api.start()
    await api.end(begun)
    return next(attempt.run_id for attempt in begun if attempt.job.id == job_id)


async def make_workflow(api: Api, name: str) -> str:
    flow = Workflow(name, topics=["in"], version="1")

    @flow.producer(schedule=every("1h"), publishes=["in"])
    async def poll(ctx: Any, state: Any) -> None: ...

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare()

    made = await WorkflowManager(api.engine, api.org_id).deploy(flow, "code:test", "default")
    assert made is not None
    return made


async def make_script(api: Api, name: str) -> str:
    """An uploaded workflow, described as the sandbox would describe it; the sandbox has its own tests."""
    flow = Workflow(name, topics=["in"], connectors=[])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare()

    manager = WorkflowManager(api.engine, api.org_id)
    fields, producers = manager.declared_rows(flow, "script", flow.dump() | {"route": "scripts"})
    return await api.db.tx(scripts_store.deploy, api.org_id, None, fields, producers, CANARY, None, NINE)


async def make_host(api: Api, name: str) -> str:
    owner = await api.db.tx(orgs.system_user, api.org_id, NINE)

    def step(tx: Tx) -> str:
        _, text = hosts.make_token(tx, api.org_id, owner, timedelta(hours=1), NINE)
        token = hosts.find_token(tx, text)
        assert token is not None
        return hosts.pair(tx, token, name, NINE)[0]

    return await api.db.tx(step)


async def make_server(api: Api, name: str) -> str:
    fields = {"host_id": await make_host(api, name), "name": name, "type": "x", "config": {}, "labels": {"role": "web"}}
    return await api.db.tx(hosts.add_server, api.org_id, fields, NINE)


async def make_host_job(api: Api, name: str) -> str:
    return await HostManager(api.engine, api.org_id).run(await make_server(api, name), SHELL)


async def make_batch(api: Api, name: str) -> str:
    ids = [await make_server(api, name)]
    return await HostManager(api.engine, api.org_id).run_batch(SHELL, servers=ids)


async def make_grant(api: Api, name: str) -> str:
    owner = await api.db.tx(orgs.system_user, api.org_id, NINE)
    return await api.engine.create_grant(api.org_id, owner, [f"task:execute:{name}"])


async def make_account(api: Api, name: str) -> str:
    owner = await make_user(api, name)
    return str((await api.db.tx(billing_accounts.account_of, api.org_id, owner, NINE)).id)


async def make_virtual_key(api: Api, name: str) -> str:
    return await api.db.tx(billing_store.add_key, api.org_id, await make_account(api, name), name, NINE)


async def make_own_key(api: Api, name: str) -> str:
    """Of the account of those who call: their keys act for the org's system user."""
    owner = await api.db.tx(orgs.system_user, api.org_id, NINE)
    account = await api.db.tx(billing_accounts.account_of, api.org_id, owner, NINE)
    return await api.db.tx(billing_store.add_key, api.org_id, account.id, name, NINE)


async def make_user(api: Api, name: str) -> str:
    return await api.db.tx(accounts.create_user, api.org_id, f"{name}@example.org", name, "x", "viewer", NINE)


async def make_hook(api: Api, name: str) -> str:
    return (await api.db.tx(signal_hooks.create, api.org_id, name, "paid", None, NINE)).id


async def make_service_account(api: Api, name: str) -> str:
    return await api.db.tx(accounts.create_service_account, api.org_id, name, "viewer", (), NINE)


async def make_session(api: Api, name: str) -> str:
    user_id = await make_user(api, name)

    def step(tx: Tx) -> str:
        user = logins.account(tx, api.org_id, user_id)
        assert user is not None
        return logins.start_session(tx, user, None, "password", logins.Browser(None, name), NINE)[0]

    return await api.db.tx(step)


async def make_key(api: Api, name: str) -> str:
    return (await api.db.tx(accounts.issue_key, api.org_id, name, "viewer", NINE))[0]


async def ask(
    api: Api, method: str, path: str, key: str | None, body: Any, *, until: Collection[str] = (), **more: str
) -> tuple[int, str]:
    """Return status and text of an answer; of an open stream, only its first part, with `until` up to one of these
    texts."""
    path, _, query = path.partition("?")
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    raw = b"" if body is None else json.dumps(body).encode()
    headers += [] if body is None else [(b"content-type", b"application/json")]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("rota", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    status, parts, streams = 0, bytearray(), asyncio.Event()
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # the client stays
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.extend(message.get("body", b""))
        is_stream = any(value.startswith(b"text/event-stream") for _, value in message.get("headers", []))
        if any(text.encode() in parts for text in until) if until else is_stream:
            streams.set()

    answering = asyncio.ensure_future(api.app(scope, receive, send))
    streaming = asyncio.ensure_future(streams.wait())
    await asyncio.wait([answering, streaming], return_when=asyncio.FIRST_COMPLETED, timeout=60)
    if not answering.done():
        await asyncio.wait([answering], timeout=0.2)
        answering.cancel()
    streaming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await answering
    return status, parts.decode()
