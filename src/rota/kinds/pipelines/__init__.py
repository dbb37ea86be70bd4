"""Pipelines: SQL and functions that make tables out of tables, in layers."""

from rota.kinds.pipelines.executor import Executor, Order, Written, executor_here
from rota.kinds.pipelines.manager import Cooling, PipelineManager, declare, fire_webhook
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner

__all__ = [
    "Cooling",
    "Executor",
    "Order",
    "PipelineManager",
    "PipelineRegistry",
    "PipelineRunner",
    "Written",
    "declare",
    "executor_here",
    "fire_webhook",
]
