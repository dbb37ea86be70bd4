"""Connectors that come with Rota: `app.connector("files", Files("reports"))`."""

from rota.kinds.workflows.connectors.builtin import Files, Http, Sql
from rota.kinds.workflows.connectors.mail import Smtp

__all__ = ["Files", "Http", "Smtp", "Sql"]
