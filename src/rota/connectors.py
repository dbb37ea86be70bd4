"""Connectors that come with Rota: `app.connector("files", Files("reports"))`."""

from rota.kinds.workflows.builtin import Files, Http, Sql
from rota.kinds.workflows.mail import Smtp

__all__ = ["Files", "Http", "Smtp", "Sql"]
