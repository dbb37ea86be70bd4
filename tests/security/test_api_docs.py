"""The API's documentation loads nothing from elsewhere and has the dashboard's policy."""

import re

import httpx
import pytest

from rota.frame.http.limits import SECURITY_HEADERS
from tests.app.harness import Api

pytestmark = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)


async def test_the_docs_are_served_from_the_package_under_a_strict_policy(api: Api) -> None:
    page = await api.client.get("/docs")
    assert page.status_code == 200
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/start.js"} <= set(linked)
    assert [address for address in linked if "//" in address] == []
    assert re.findall(r"<script>|<style|style=| on[a-z]+=", page.text) == []
    answers: list[httpx.Response] = [page]
    for address in linked:
        answers.append(await api.client.get(f"/{address}"))
        assert answers[-1].status_code == 200, address
    for answer in answers:
        if "openapi" not in str(answer.url):
            assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
    assert "script-src 'self';" in page.headers["content-security-policy"]


async def test_pages_of_the_framework_are_gone(api: Api) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect", "/docs/", "/docs/../auth.py", "/docs/%2e%2e/docs.py"):
        answer = await api.client.get(path)
        assert answer.status_code == 404, path
        assert "jsdelivr" not in answer.text
