"""Routes of signals to runs that wait, and of webhooks that send them."""

import orjson
from fastapi import APIRouter, Request, Response

from rota.app.api import models
from rota.core import webhooks
from rota.core.errors import Invalid, NotFound
from rota.core.model import PAYLOAD_LIMIT
from rota.engine import signal_hooks
from rota.frame.http.auth import Operator, Unauthenticated, Viewer, guess_bucket
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.guessing import FailedAttempts
from rota.frame.http.limits import read_bytes
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.frame.http.reports import reports_of

router = APIRouter(tags=["signals"], route_class=BodyRoute)
receiving = APIRouter(prefix="/api/v1/webhooks", tags=["signals"])


@router.post("/signals", status_code=202, response_model=models.SignalSent)
async def send(request: Request, caller: Operator, body: models.SignalBody) -> Response:
    """Send a signal `{topic, key?, payload?, id?}`: it completes the oldest wait for its topic and key, or is kept for
    one that comes. The same `id` is one signal."""
    sent = await engine_of(request).send_signal(
        caller.org_id, body.topic, key=body.key, payload=body.payload, signal_id=body.id, sender=caller.user_id
    )
    return answer({"id": sent.id, "delivered": sent.delivered}, 202)


@router.post("/signal-hooks", status_code=201, response_model=models.NewSignalHook)
async def create_hook(request: Request, caller: Operator, body: models.SignalHookBody) -> Response:
    """Create a webhook `{name, topic, key_field?}`: a request to its `path` that is signed with its `secret`, in the
    format of Standard Webhooks, is sent as a signal of the topic. The secret is shown once."""
    engine = engine_of(request)
    hook = await engine.db.tx(
        signal_hooks.create, caller.org_id, body.name, body.topic, body.key_field, engine.clock.now()
    )
    return answer(shown(hook, with_secret=True), 201, {"location": f"/api/v1/signal-hooks/{hook.id}"})


@router.get("/signal-hooks", response_model=page_of(models.SignalHook))
async def list_hooks(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Webhooks that send signals, without their secrets."""
    rows, following = await reports_of(request, caller).read(
        signal_hooks.list_hooks, caller.org_id, limit=limit, cursor=cursor
    )
    return answer_page(([{**row, "path": path_of(row["id"])} for row in rows], following))


@router.get("/signal-hooks/{key}", response_model=models.SignalHook)
async def read_hook(request: Request, caller: Viewer, key: str) -> Response:
    return answer(shown(await engine_of(request).db.read(signal_hooks.get, caller.org_id, key)))


@router.post("/signal-hooks/{key}/$rotate", response_model=models.NewSignalHook)
async def rotate_hook(request: Request, caller: Operator, key: str, _: NoFields) -> Response:
    """Give a webhook a new secret, which is shown once. The previous one is valid for another day."""
    engine = engine_of(request)
    hook = await engine.db.tx(signal_hooks.rotate, caller.org_id, key, engine.clock.now())
    return answer(shown(hook, with_secret=True))


@router.delete("/signal-hooks/{key}", status_code=204)
async def delete_hook(request: Request, caller: Operator, key: str) -> Response:
    """Delete a webhook. Signals that it sent stay."""
    await engine_of(request).db.tx(signal_hooks.remove, caller.org_id, key)
    return Response(status_code=204)


@receiving.post("/{hook_id}", status_code=202, response_model=models.SignalSent)
async def receive(request: Request, hook_id: str) -> Response:
    """Send the JSON body as a signal of a webhook's topic. No API key is needed: the request is signed (headers
    `webhook-id`, `webhook-timestamp` and `webhook-signature` of Standard Webhooks). The same `webhook-id` is one
    signal."""
    engine, failures = engine_of(request), request.app.state.failures
    assert isinstance(failures, FailedAttempts)
    now, bucket = engine.clock.now(), guess_bucket(request, "signature of a webhook")
    failures.check(now, bucket)
    hook = await engine.db.read(signal_hooks.find, hook_id)
    if hook is None:
        failures.add(now, bucket)
        raise NotFound(f"hook {hook_id!r} not found")
    body = await read_bytes(request, PAYLOAD_LIMIT)
    refusal = webhooks.refusal_of(request.headers, body, hook.valid_secrets(now), now)
    if refusal is not None:
        failures.add(now, bucket)
        raise Unauthenticated(refusal)
    payload = parse_body(body)
    signal_id = f"{hook.id}:{request.headers['webhook-id']}"
    sent = await engine.send_signal(
        hook.org_id, hook.topic, key=hook.key_of(payload), payload=payload, signal_id=signal_id, sender=hook.id
    )
    return answer({"id": sent.id, "delivered": sent.delivered}, 202)


def parse_body(body: bytes) -> object:
    """Return the JSON of a signed request. Raises Invalid if it is not JSON."""
    try:
        return orjson.loads(body) if body else None
    except orjson.JSONDecodeError as error:
        raise Invalid("body", body[:100].decode("utf-8", "replace"), f"is not JSON: {error}") from error


def shown(hook: signal_hooks.SignalHook, with_secret: bool = False) -> dict[str, object]:
    """Return the fields of a webhook for its creator, or without the secret."""
    fields = {
        name: getattr(hook, name) for name in ("id", "name", "topic", "key_field", "previous_until", "created_at")
    }
    return {**fields, "path": path_of(hook.id), **({"secret": hook.secret} if with_secret else {})}


def path_of(hook_id: object) -> str:
    return f"/api/v1/webhooks/{hook_id}"
