"""Large answers of the API are compressed, and no others."""

from rota.frame.http.compression import COMPRESSED_BYTES_MIN
from tests.app.harness import Api

GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}


async def test_large_lists_are_compressed_for_clients_that_accept_it(api: Api) -> None:
    items = [{"name": f"s{number}", "target": "hello", "interval": "1d"} for number in range(30)]
    created = await api.call("POST", "/schedules/$bulk", {"items": items}, headers=GZIP)
    assert created.status_code == 201
    assert "content-encoding" not in created.headers
    large, plain = await api.call("GET", "/schedules", headers=GZIP), await api.call("GET", "/schedules", headers=PLAIN)
    assert large.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in large.headers["vary"].lower()
    assert "content-encoding" not in plain.headers
    assert len(plain.content) > COMPRESSED_BYTES_MIN > int(large.headers["content-length"])
    assert large.json() == plain.json()
    small = await api.call("GET", "/schedules?limit=1", headers=GZIP)
    assert "content-encoding" not in small.headers


async def test_pages_and_answers_with_secrets_are_not_compressed(api: Api) -> None:
    """A compressed page with a token and text from the query would reveal the token by its length (BREACH)."""
    page = await api.client.get("/login", headers=GZIP)
    assert page.status_code == 200
    key = await api.call("POST", "/api-keys", {"name": "k" * 200, "role": "viewer"}, headers=GZIP)
    document = await api.client.get("/openapi.json", headers=GZIP)
    assert len(document.content) > COMPRESSED_BYTES_MIN
    for answer in (page, key, document):
        assert "content-encoding" not in answer.headers
