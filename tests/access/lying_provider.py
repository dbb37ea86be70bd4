"""A provider that lies, is slow or is broken, on a socket of its own. What it does wrong is set per test."""

import hmac
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

CLIENT_ID, CLIENT_SECRET = "rota", "a-client-secret-of-32-characters-and-more"


@dataclass
class LyingProvider:
    """By default it is honest. `nonce` is what the sign-in under way has sent."""

    issuer: str = ""
    key: Any = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first"}))
    nonce: str = ""
    nonce_is_code: bool = False  # for sign-ins at the same time
    claims: dict[str, Any] = field(default_factory=dict)  # that differ from the honest ones; None removes one
    metadata: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    user_info: dict[str, Any] = field(default_factory=dict)
    published: list[dict[str, Any]] | None = None  # keys; None: the one that signs
    sign: Callable[[dict[str, Any]], str] | None = None  # another way to make the ID token
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)  # by path
    requests: list[str] = field(default_factory=list)

    def id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "ada", "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": nonce,
            "groups": ["rota-ops"], "email": "ada@example.org", "email_verified": True, "name": "Ada", **self.claims,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.sign is not None:
            return self.sign(claims)
        return jwt.encode({"alg": "RS256", "kid": self.key.kid, **self.header}, claims, self.key)

    def document(self, path: str, code: str = "") -> Any:
        honest = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
        }
        if path == "/.well-known/openid-configuration":
            return {name: value for name, value in {**honest, **self.metadata}.items() if value is not None}
        if path == "/keys":
            return {"keys": self.published if self.published is not None else [self.key.as_dict(private=False)]}
        if path == "/userinfo":
            return {"sub": "ada", **self.user_info}
        return {
            "access_token": "an-access-token",
            "token_type": "Bearer",
            "id_token": self.id_token(code if self.nonce_is_code else self.nonce),
        }


@contextmanager
def lying_provider() -> Iterator[LyingProvider]:
    provider = LyingProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self, code: str = "") -> None:
            provider.requests.append(self.path)
            if answer := provider.answers.get(self.path):
                answer(self)
            else:
                send(self, json.dumps(provider.document(self.path, code)).encode())

        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            self.do_GET(body["code"][0])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield provider
    server.shutdown()
    server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"content_type": "application/json", "content_length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


# ways to make an ID token


def part(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any], algorithm: str = "none") -> str:
    return f"{part({'alg': algorithm, 'kid': 'first'})}.{part(claims)}."


def signed_with_secret(claims: dict[str, Any]) -> str:
    """Signed by anyone who knows the client secret."""
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT_SECRET))


def signed_with_public_key(provider: LyingProvider) -> Callable[[dict[str, Any]], str]:
    """HS256 with the public key as the secret: accepted by libraries that mix up algorithms."""

    def sign(claims: dict[str, Any]) -> str:
        signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(claims)}"
        digest = hmac.digest(provider.key.as_pem(private=False), signed.encode(), "sha256")
        return f"{signed}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    return sign


def signed_with_embedded_key(claims: dict[str, Any]) -> str:
    """Brings its own key in the header."""
    own = ECKey.generate_key("P-256", {"kid": "first"})
    return jwt.encode({"alg": "ES256", "kid": "first", "jwk": own.as_dict(private=False)}, claims, own)
