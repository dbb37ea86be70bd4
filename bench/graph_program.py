"""The graph of the benchmark: reports usage once and returns. Its own file, because a child process loads it too."""

from collections.abc import AsyncIterator

from rota.app.application import Rota
from rota.graphs import AssistantFinal, GraphRequest, LlmCaller, UsageReport


async def quiet(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:  # noqa: ARG001
    yield UsageReport("call", "tiny", 10, 20, "0.001")
    yield AssistantFinal("done")


app = Rota()
app.graph("quiet", quiet, provider="python")
