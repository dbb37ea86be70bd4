"""Bodies and answers of the routes of graphs, and of the internal endpoint that runs them for other services."""

from rota.core.wire import ABSENT, EXAMPLE_ID, Answer, Id, NameText, PayloadObject, RequestBody, Ulid, example


class Graph(Answer):
    id: str
    provider: str
    name: NameText
    version: str | None
    description: str | None
    live: bool


class GraphBody(RequestBody):
    model_config = example({"input": {"messages": [{"role": "user", "content": "spring"}]}})

    input: PayloadObject | None = None
    grant_id: Ulid | None = None


class GraphId(Answer):
    id: str


class GraphIds(Answer):
    items: list[GraphId]


class GraphOrderBody(RequestBody):
    model_config = example({"grant_id": EXAMPLE_ID, "input": {"messages": []}})

    grant_id: Ulid
    input: PayloadObject | None = None
    run_id: Ulid | None = None


class GraphOutcome(Answer):
    ok: bool
    run_id: Id
    trace_id: str
    error_code: str = ABSENT
