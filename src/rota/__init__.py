"""Rota: a durable rota for code."""

__version__ = "0.1.0"
