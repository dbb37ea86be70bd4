"""The route of webhooks: a request with the token of a trigger runs its pipeline. No API key is needed."""

from fastapi import APIRouter, Request, Response

from rota.core.errors import NotFound
from rota.frame.http.answers import JobRef
from rota.frame.http.auth import Unauthenticated, guess_bucket, key_text
from rota.frame.http.contract import answer, engine_of, problem
from rota.frame.http.guessing import FailedAttempts
from rota.kinds.pipelines.manager import CooldownActive, fire_webhook

router = APIRouter(prefix="/api/v1/webhooks", tags=["pipelines"])


@router.post("", status_code=202, response_model=JobRef)
async def fire_trigger(request: Request) -> Response:
    """Enqueue a job of the pipeline whose trigger has the token of `X-Webhook-Token` or of a bearer; the body is
    ignored. 429 with `Retry-After` during the trigger's cooldown."""
    token = request.headers.get("x-webhook-token") or key_text(request)
    if not token:
        raise Unauthenticated("missing the token of a webhook; send `X-Webhook-Token: …`")
    engine, failures = engine_of(request), request.app.state.failures
    assert isinstance(failures, FailedAttempts)
    try:
        return answer({"job_id": await fire_webhook(engine, token)}, 202)
    except NotFound:
        failures.count(engine.clock.now(), guess_bucket(request, "webhook token"))
        raise
    except CooldownActive as error:
        return problem(429, error.code, error.message, headers={"retry-after": str(error.seconds)})
