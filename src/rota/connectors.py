"""Connectors that come with Rota: `app.connector("files", Files("reports"))`."""

from rota.kinds.workflows.builtin import Files, Http, Smtp, Sql

__all__ = ["Files", "Http", "Smtp", "Sql"]
