"""Webhooks: whoever has the token of a trigger makes its pipeline run. No key: the token is the authority."""

from fastapi import APIRouter, Request, Response

from rota.core.errors import NotFound
from rota.frame.http.auth import Unauthenticated, guesser, key_text
from rota.frame.http.contract import answer, engine_of, problem
from rota.frame.http.guessing import Failures
from rota.kinds.pipelines.manager import Cooling, fire_webhook

router = APIRouter(prefix="/api/v1/webhooks", tags=["pipelines"])


@router.post("", status_code=202)
async def fire(request: Request) -> Response:
    """A job of the pipeline whose trigger has the token in `X-Webhook-Token`, or as a bearer's; a body is not read. In
    the trigger's cooldown 429 with `Retry-After`."""
    token = request.headers.get("x-webhook-token") or key_text(request)
    if not token:
        raise Unauthenticated("this needs the token of a webhook: send `X-Webhook-Token: …`")
    engine, failures = engine_of(request), request.app.state.failures
    assert isinstance(failures, Failures)
    try:
        return answer({"job_id": await fire_webhook(engine, token)}, 202)
    except NotFound:
        failures.count(engine.clock.now(), guesser(request, "webhook token"))
        raise
    except Cooling as error:
        return problem(429, error.code, error.message, headers={"retry-after": str(error.seconds)})
