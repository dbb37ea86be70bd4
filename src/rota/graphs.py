"""Types for Python graphs: a graph is `async def poet(request, caller)` and yields these events."""

from rota.kinds.graphs.port import (
    AssistantFinal,
    Code,
    Done,
    Final,
    GraphError,
    GraphExecutor,
    GraphRequest,
    LlmCaller,
    TextDelta,
    ToolCallResult,
    ToolCallStart,
    UsageReport,
)

__all__ = [
    "AssistantFinal",
    "Code",
    "Done",
    "Final",
    "GraphError",
    "GraphExecutor",
    "GraphRequest",
    "LlmCaller",
    "TextDelta",
    "ToolCallResult",
    "ToolCallStart",
    "UsageReport",
]
