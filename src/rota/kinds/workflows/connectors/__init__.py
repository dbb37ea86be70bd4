"""Connectors: how a workflow reaches systems outside."""
