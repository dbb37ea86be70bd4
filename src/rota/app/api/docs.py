"""`/docs`: the API's description in Swagger UI, from files of this package and under the dashboard's policy."""

from html import escape
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from rota.frame.http.limits import SECURITY_HEADERS

FILES = Path(__file__).parent / "swagger_ui"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript; <a href="openapi.json">openapi.json</a> has the same content.</noscript>
</body>
</html>
"""


class DocsFiles(StaticFiles):
    """Static files of Swagger UI, with the security headers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await super().__call__(scope, receive, send_with_headers)


def add_docs(app: FastAPI) -> None:
    """Serve `/docs` and its files."""

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE.format(title=escape(app.title)), headers=SECURITY_HEADERS)

    app.add_route("/docs", page, include_in_schema=False)
    app.mount("/docs", DocsFiles(directory=FILES))
