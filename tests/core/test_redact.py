"""The redactor: what it hides, what it leaves, and that no text makes it slow."""

import time
from typing import Any

import pytest

from rota.core.redact import HIDDEN, has_hidden, hidden_values, is_secret_name, redacted, redacted_text

SECRET_NAMES = [
    "password", "DB_PASSWORD", "dbPassword", "DBPassword", "clientSecret", "client-secret", "Pwd", "passphrase",
    "apiKey", "APIKey", "api_key", "x-api-key", "accessKey", "private.key", "signingKey", "AWS_SECRET_ACCESS_KEY",
    "token", "accessToken", "refresh_token", "oauth2Token", "token_hash", "Authorization", "basicAuth", "cookie",
    "Set-Cookie", "credentials", "dbpassword", "PGPASSWORD", "password2", "--password", "pass",
]  # fmt: skip
OTHER_NAMES = [
    "name", "key", "keyword", "monkey", "primaryKey", "passed", "compass", "bypass", "passenger", "author",
    "authMethod", "authorized", "tokens", "max_tokens", "tokenize", "cookieless", "secretary", "basic", "url",
    "user", "path", "PWDX",
]  # fmt: skip


def test_names_are_secret_by_their_words() -> None:
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in OTHER_NAMES if is_secret_name(name)] == []


def test_values_are_hidden_by_the_name_of_their_field() -> None:
    value = {
        "dbPassword": "x",
        "nested": [{"clientSecret": ["a", "b"]}],
        "password": 123,
        "token_count": 7,
        "token": None,
        "use_token": True,
        "secret": "",
        "credentials": {"user": "u"},
        "args": ["--password", "x", "--name", "y"],
    }
    assert redacted(value) == {
        "dbPassword": HIDDEN,
        "nested": [{"clientSecret": HIDDEN}],
        "password": HIDDEN,
        "token_count": 7,
        "token": None,
        "use_token": True,
        "secret": "",
        "credentials": HIDDEN,
        "args": ["--password", HIDDEN, "--name", "y"],
    }
    assert redacted(redacted(value)) == redacted(value)
    assert hidden_values([{"token": "abcd", "n": {"pwd": ["efgh", "x"]}, "name": "web-1"}]) == {"abcd", "efgh"}
    assert has_hidden({"a": [{"b": HIDDEN}]})
    assert not has_hidden({"a": ["*** b"]})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 x", "password=*** x"),
        ('{"dbPassword": "a b\\" c", "x": 1}', '{"dbPassword": "***", "x": 1}'),
        ("Server=x;Pwd=geheim;User=a", "Server=x;Pwd=***;User=a"),
        ("curl -u bot:geheim http://u:p@h/", "curl -u bot:*** http://u:***@h/"),
        ("curl --user 'bot:geheim' x", "curl --user 'bot:***' x"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("sent Bearer abc123, then", "sent Bearer ***, then"),
        ("mysqldump --password geheim db", "mysqldump --password *** db"),
        ("export AWS_SECRET_ACCESS_KEY=abc/def", "export AWS_SECRET_ACCESS_KEY=***"),
        ("GET https://x/?access_token=abc&y=1", "GET https://x/?access_token=***&y=1"),
        ("Set-Cookie: a=b; c=d", "Set-Cookie: ***"),
        ("password: 'a b", "password: '***'"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
        ("key rota_abcdefghijklmnopqrstuvwxyz", "key rota_***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN EC PRIVATE KEY-----\nabc", "***"),
        ("id AKIAABCDEFGHIJKLMNOP", "id ***"),
    ],
)
def test_secrets_in_a_text_are_hidden(text: str, shown: str) -> None:
    assert redacted_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the password is fine", "basic understanding of things", "bearer of bad news", "token_count: 7, max_tokens=7",
        "key: value", "author: Bob", "auth_method: oidc", "password: true", "passed: 7", "https://example.com:80/a@b",
        "-----BEGIN CERTIFICATE-----\nabc", "tokens: 12", "du -u root", "",
    ],
)  # fmt: skip
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert redacted_text(text) == text


SIZE = 64 * 1024
PIECES = (
    "-", "--token ", "-eyJ", "eyJaaaaaaaaa.", "://a:", "://", "cookie: ", "set-cookie", "bearer ", 'password="',
    "token='\\", "token=\\", "token=", "token=\n", "token ", "-u a", "-u :", "-u ", "rota_x-", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----", "aBtoken", "A", "xoxb-a ", "ghp_a-", '{"token": "', 'token"', "token\\",
    ".token", "--", "tokenA", "token:token", '"', "'",
)  # fmt: skip


def test_no_text_takes_more_than_linear_time() -> None:
    for piece in PIECES:
        for start, end in (
            ("", ""),
            ("token=", ""),
            ("", "token=x"),
            ("://", "@"),
            ("-----BEGIN PRIVATE KEY-----", ""),
        ):
            text = start + piece * (SIZE // len(piece)) + end
            began = time.process_time()
            redacted_text(text)
            redacted({text: text})
            assert time.process_time() - began < 2, (start, piece, end)  # quadratic time would be a minute


def test_a_line_without_a_hint_costs_little() -> None:
    line: Any = "2026-05-04 09:00:00 INFO worker started job 123 in 45 ms for queue default"
    began = time.process_time()
    for _ in range(10_000):
        redacted_text(line)
    assert time.process_time() - began < 0.3  # measured: 0.013
