"""Routes of alarms, their channels and events."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from rota.core.alarms import EventState
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.alarms.manager import AlarmManager
from rota.kinds.alarms.models import (
    AcknowledgeEventBody,
    Alarm,
    AlarmBody,
    AlarmChanges,
    AlarmEvent,
    Channel,
    ChannelBody,
    ChannelChanges,
    Deliveries,
    NewChannel,
)
from rota.kinds.alarms.runner import AlarmRunner
from rota.kinds.alarms.store import rows

router = APIRouter(tags=["alarms"], route_class=BodyRoute)


def manager(request: Request, caller: Caller) -> AlarmManager:
    engine = engine_of(request)
    runner = engine.runners.get(AlarmRunner.kind)
    settings = (runner.settings,) if isinstance(runner, AlarmRunner) else ()
    return AlarmManager(engine, caller.org_id, *settings)


@router.post("/alarms", status_code=201, response_model=Alarm)
async def create(request: Request, caller: Operator, body: AlarmBody) -> Response:
    """Create an alarm. `when` is a rule such as `late > 5m`, `on` what it watches (`schedule:NAME`, `tag:NAME`,
    `KIND:TARGET`, `queue:NAME`, `host:NAME`; absent: the whole org), `notify` names of channels."""
    alarm = await manager(request, caller).add(body)
    return answer(alarm, 201, {"location": f"/api/v1/alarms/{alarm['id']}"})


@router.get("/alarms", response_model=page_of(Alarm))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Alarms, by name."""
    return answer_slice(await reports_of(request, caller).read(rows.list_alarms, caller.org_id), limit, cursor)


@router.get("/alarms/{key}", response_model=Alarm)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """Read an alarm by its id or name."""
    return answer(await manager(request, caller).find(key))


@router.patch("/alarms/{key}", response_model=Alarm)
async def edit(request: Request, caller: Operator, key: str, body: AlarmChanges) -> Response:
    """Change an alarm; absent fields stay. Open events of another rule or scope are resolved."""
    return answer(await manager(request, caller).edit(key, body))


@router.delete("/alarms/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Delete an alarm with its events; its deliveries stay in the ledger."""
    await manager(request, caller).delete(key)
    return Response(status_code=204)


@router.post("/alarms/{key}/$test", status_code=202, response_model=Deliveries)
async def test(request: Request, caller: Operator, key: str, body: NoFields) -> Response:  # noqa: ARG001
    """Send a test message to each channel of an alarm. The outcome of each job has the answer of the receiver."""
    alarms = manager(request, caller)
    alarm = await alarms.find(key)
    return answer({"job_ids": await alarms.test_channels(alarm["notify"])}, 202)


@router.post("/alarm-channels", status_code=201, response_model=NewChannel)
async def create_channel(request: Request, caller: Operator, body: ChannelBody) -> Response:
    """Create a channel. The key of a webhook's signatures is in this answer only. A command needs the scope `shell`."""
    if body.type == "command":
        caller.check_shell()
    channel, secret = await manager(request, caller).add_channel(body)
    return answer({**channel, "secret": secret}, 201, {"location": f"/api/v1/alarm-channels/{channel['id']}"})


@router.get("/alarm-channels", response_model=page_of(Channel))
async def list_channels(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Channels, by name, with the answer of the receiver to the last delivery."""
    return answer_slice(await reports_of(request, caller).read(rows.list_channels, caller.org_id), limit, cursor)


@router.get("/alarm-channels/{key}", response_model=Channel)
async def read_channel(request: Request, caller: Viewer, key: str) -> Response:
    """Read a channel by its id or name; its secret is never shown."""
    return answer(await manager(request, caller).channel(key))


async def manager_of_channel(request: Request, caller: Caller, key: str) -> AlarmManager:
    """Return the manager, if the caller may change or run a channel. Raises NotFound and Refused."""
    channels = manager(request, caller)
    if (await channels.channel(key))["type"] == "command":
        caller.check_shell()
    return channels


@router.patch("/alarm-channels/{key}", response_model=Channel)
async def edit_channel(request: Request, caller: Operator, key: str, body: ChannelChanges) -> Response:
    """Change a channel; absent fields stay. A command needs the scope `shell`."""
    return answer(await (await manager_of_channel(request, caller, key)).edit_channel(key, body))


@router.delete("/alarm-channels/{key}", status_code=204)
async def delete_channel(request: Request, caller: Operator, key: str) -> Response:
    """Delete a channel; 409 if alarms use it. A command needs the scope `shell`."""
    await manager_of_channel(request, caller, key)
    await engine_of(request).db.tx(rows.remove_channel, caller.org_id, key)
    return Response(status_code=204)


@router.post("/alarm-channels/{key}/$test", status_code=202, response_model=Deliveries)
async def test_channel(request: Request, caller: Operator, key: str, body: NoFields) -> Response:  # noqa: ARG001
    """Send a test message. The outcome of the job has the answer of the receiver. A command needs the scope `shell`."""
    return answer({"job_ids": await (await manager_of_channel(request, caller, key)).test_channels([key])}, 202)


@router.get("/alarm-events", response_model=page_of(AlarmEvent))
async def list_events(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: EventState | None = None,
    alarm: str | None = None,
) -> Response:
    """Alarm events, newest first."""
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "state": state, "alarm": alarm}
    return answer_page(await reports_of(request, caller).read(rows.list_events, caller.org_id, **filters))


@router.post("/alarm-events/{event_id}/$acknowledge", response_model=AlarmEvent)
async def acknowledge(
    request: Request,
    caller: Operator,
    event_id: str,
    body: Annotated[AcknowledgeEventBody, Body(default_factory=AcknowledgeEventBody)],
) -> Response:
    """Acknowledge a firing event, in the name of the caller: it is not repeated; it resolves by itself."""
    return answer(await manager(request, caller).acknowledge(event_id, caller.user_id, body.note))
