"""An OpenID Connect provider as its client sees it: discovery, signing keys, tokens.

What the provider answers is bounded in size and time, and nothing of it is stored. Tokens stay in this module: callers
get claims.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx2
import orjson
import structlog
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import extract_compact
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from rota.access.oidc.flow import Attempt, ProviderUnavailable, SignInRefused
from rota.access.oidc.settings import OidcSettings, check_endpoint, groups_of

# Signatures that only the provider can make. With HS256 everybody who knows the client secret could sign, with `none`
# everybody.
ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("Ed25519", "EdDSA"), "OKP"),
}  # with the type of their keys
MIN_RSA_BITS = 2048
MAX_KEYS = 100
MAX_RESPONSE_BYTES = 512 * 1024
REQUEST_SECONDS = 10.0
METADATA_LIFETIME = timedelta(hours=1)
KEYS_LIFETIME = timedelta(hours=1)
FAILURE_PAUSE = timedelta(seconds=5)  # after a failed request for metadata or keys
KEYS_REFRESH_PAUSE = timedelta(minutes=1)  # between refreshes because of unknown keys
CLOCK_SKEW_SECONDS = 60
MAX_ID_TOKEN_AGE = timedelta(minutes=10)  # since it was issued, in the exchange for the code
SUBJECT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")
log = structlog.get_logger("rota.oidc")

Url = Annotated[str, Field(max_length=2000), AfterValidator(check_endpoint)]
Names = Annotated[list[str], Field(max_length=200)]


class Metadata(BaseModel):
    """What Rota uses of a provider's discovery document."""

    issuer: str
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    userinfo_endpoint: Url | None = None
    end_session_endpoint: Url | None = None
    id_token_signing_alg_values_supported: Names = ["RS256"]
    token_endpoint_auth_methods_supported: Names = ["client_secret_basic"]
    authorization_response_iss_parameter_supported: bool = False


class Cached(Generic[T]):
    """A value that is fetched when it is needed and kept for a while; after a failure, not asked for again at once."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], lifetime: timedelta) -> None:
        self.fetch, self.lifetime = fetch, lifetime
        self.value: T | None = None
        self.error: ProviderUnavailable | None = None
        self.tried_at: datetime | None = None
        self.lock = asyncio.Lock()

    async def get(self, now: datetime, pause: timedelta | None = None) -> T:
        """Return the value, fetched again if it is older than `pause`, by default its lifetime. Raises
        ProviderUnavailable."""
        async with self.lock:  # concurrent callers wait for one request
            age = None if self.tried_at is None else abs(now - self.tried_at)  # `now` is older for who had to wait
            limit = FAILURE_PAUSE if self.error is not None else pause or self.lifetime
            if age is None or age >= limit:
                self.tried_at = now
                try:
                    self.value, self.error = await self.fetch(), None
                except ProviderUnavailable as error:
                    self.error = error
            if self.error is not None or self.value is None:
                raise self.error or ProviderUnavailable("the provider did not answer")
            return self.value


class Provider:
    """The provider of the settings. Safe for concurrent use in one event loop."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self.metadata = Cached(self.fetch_metadata, METADATA_LIFETIME)
        self.keys = Cached(self.fetch_keys, KEYS_LIFETIME)

    async def authorization_url(self, attempt: Attempt, redirect_uri: str, now: datetime) -> str:
        """Return the URL at the provider where a person signs in. Raises ProviderUnavailable."""
        metadata = await self.metadata.get(now)
        async with self.client(metadata) as client:
            url, _ = client.create_authorization_url(
                metadata.authorization_endpoint,
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.code_verifier,
                redirect_uri=redirect_uri,
                scope=self.settings.scopes,
            )
        return str(url)

    async def check_issuer(self, issuer: str | None, now: datetime) -> None:
        """Raises SignInRefused if the `iss` of an answer names another provider, or is missing although the provider
        sends it (RFC 9207)."""
        metadata = await self.metadata.get(now)
        required = metadata.authorization_response_iss_parameter_supported
        if issuer != self.settings.issuer and (issuer is not None or required):
            raise SignInRefused("the answer comes from another provider than the sign-in was started with")

    async def claims(self, code: str, attempt: Attempt, redirect_uri: str, now: datetime) -> dict[str, Any]:
        """Exchange a code for tokens and return the verified claims of the ID token, with those of the user info
        endpoint if groups or address are missing. Raises ProviderUnavailable, SignInRefused."""
        metadata = await self.metadata.get(now)
        async with self.client(metadata) as client:
            try:
                tokens = await bounded(
                    client.fetch_token(
                        metadata.token_endpoint,
                        grant_type="authorization_code",
                        code=code,
                        code_verifier=attempt.code_verifier,
                        redirect_uri=redirect_uri,
                    )
                )
            except OAuthError as error:
                log.warning("provider refused the code", error=printable(error.error), issuer=self.settings.issuer)
                raise SignInRefused(refused_code(printable(error.error))) from error
            except ProviderUnavailable as error:
                raise self.unusable(f"its tokens could not be read: {error.message}") from error
            id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
            if not isinstance(id_token, str):
                raise SignInRefused("the provider sent no ID token; is the scope openid allowed for this client?")
            claims = await self.verify(id_token, access_token, attempt.nonce, metadata, now)
        missing = groups_of(claims, self.settings.groups_claim) is None or "email" not in claims
        if missing and metadata.userinfo_endpoint and isinstance(access_token, str):
            claims |= await self.user_info(metadata.userinfo_endpoint, access_token, claims)
        return claims

    async def logout_url(self, return_to: str, now: datetime) -> str | None:
        """Return the URL that ends the session at the provider; None if the provider has none. It has no ID token,
        which would be a token in a URL: the provider asks the person for confirmation instead."""
        metadata = await self.metadata.get(now)
        endpoint = metadata.end_session_endpoint
        query = urlencode({"client_id": self.settings.client_id, "post_logout_redirect_uri": return_to})
        return None if endpoint is None else f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{query}"

    # what the provider publishes

    async def fetch_metadata(self) -> Metadata:
        url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        document = await self.fetch_json(url, "discovery document")
        try:
            metadata = Metadata.model_validate(document)
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(map(str, detail["loc"])) for detail in error.errors()}))
            raise self.unusable(f"its discovery document is invalid ({fields})") from error
        if metadata.issuer != self.settings.issuer:
            raise self.unusable(
                f"its discovery document names the issuer {printable(metadata.issuer)}; "
                f"ROTA_OIDC_ISSUER is {self.settings.issuer}, and both must be equal, a final slash included"
            )
        return metadata

    async def fetch_keys(self) -> list[Key]:
        metadata = self.metadata.value
        assert metadata is not None, "keys are needed after metadata"
        document = await self.fetch_json(metadata.jwks_uri, "key document")
        described = document.get("keys")
        keys = [usable_key(key) for key in described[:MAX_KEYS]] if isinstance(described, list) else []
        usable = [key for key in keys if key is not None]
        if not usable:
            raise self.unusable("its key document has no key for signatures")
        return usable

    async def fetch_json(self, url: str, document: str) -> dict[str, Any]:
        return self.parse(await self.fetch(url, document), document)

    async def fetch(self, url: str, document: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
        """Return the content of a document of the provider. Raises ProviderUnavailable. Redirects are not followed."""
        try:
            async with httpx2.AsyncClient(transport=BoundedTransport(), timeout=REQUEST_SECONDS) as client:
                response = await bounded(client.get(url, headers={"accept": "application/json", **headers}))
        except ProviderUnavailable as error:
            raise self.unusable(f"its {document} could not be read: {error.message}") from error
        if response.status_code != 200:
            raise self.unusable(f"its {document} could not be read: status {response.status_code}")
        return response.content

    def parse(self, content: bytes, document: str) -> dict[str, Any]:
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise self.unusable(f"its {document} is not JSON") from error
        if not isinstance(value, dict):
            raise self.unusable(f"its {document} is not a JSON object")
        return value

    def unusable(self, problem: str) -> ProviderUnavailable:
        log.warning("provider cannot be used", issuer=self.settings.issuer, problem=problem)
        return ProviderUnavailable(f"the provider {self.settings.title} cannot be used: {problem}")

    # tokens

    def client(self, metadata: Metadata) -> AsyncOAuth2Client:
        methods = metadata.token_endpoint_auth_methods_supported
        post = "client_secret_basic" not in methods and "client_secret_post" in methods
        method = "none" if not self.settings.client_secret else f"client_secret_{'post' if post else 'basic'}"
        return AsyncOAuth2Client(
            self.settings.client_id,
            self.settings.client_secret or None,
            token_endpoint_auth_method=method,
            code_challenge_method="S256",
            transport=BoundedTransport(),
            timeout=REQUEST_SECONDS,
        )

    async def verify(
        self, id_token: str, access_token: object, nonce: str, metadata: Metadata, now: datetime
    ) -> dict[str, Any]:
        """Return the claims of an ID token: signed by the issuer, for this client and this sign-in, and not expired.
        Raises SignInRefused, ProviderUnavailable."""
        algorithms = sorted(ALGORITHMS.keys() & set(metadata.id_token_signing_alg_values_supported))
        try:
            header = extract_compact(id_token.encode()).headers()
            if header.get("alg") not in algorithms:
                raise SignInRefused(
                    f"the ID token is signed with {printable(header.get('alg'))}, which is not accepted; "
                    f"the provider must use {' or '.join(algorithms) or 'an asymmetric algorithm'}"
                )
            token = jwt.decode(id_token, await self.key_of(header, now), algorithms=algorithms)
            options: Any = {
                "iss": {"essential": True, "value": self.settings.issuer},
                "aud": {"essential": True, "value": self.settings.client_id},
                "sub": {"essential": True},
                "exp": {"essential": True},
                "iat": {"essential": True},
            }
            params = {"client_id": self.settings.client_id, "nonce": nonce}
            params |= {"access_token": access_token} if isinstance(access_token, str) else {}
            claims = CodeIDToken(token.claims, token.header, options, params)
            claims.validate(int(now.timestamp()), CLOCK_SKEW_SECONDS)
        except (JoseError, ValueError, TypeError, OverflowError) as error:
            reason = printable(getattr(error, "error", "")) or type(error).__name__
            log.warning("ID token refused", reason=reason, issuer=self.settings.issuer)
            raise SignInRefused(f"the ID token of the provider is not valid ({reason})") from error
        if not isinstance(claims["iat"], int | float) or now.timestamp() - claims["iat"] > (
            MAX_ID_TOKEN_AGE.total_seconds()
        ):
            raise SignInRefused("the ID token of the provider was issued too long ago")
        if not isinstance(claims["sub"], str) or not SUBJECT.fullmatch(claims["sub"]):
            raise SignInRefused("the ID token of the provider has no valid subject")
        return dict(claims)

    async def key_of(self, header: Mapping[str, object], now: datetime) -> Key:
        """Return the key that a token names, or the only one of its type. For an unknown key, the keys are fetched
        again, at most once a minute. Raises SignInRefused, ProviderUnavailable."""
        for pause in (None, KEYS_REFRESH_PAUSE):
            keys = matching_keys(await self.keys.get(now, pause), header)
            if len(keys) == 1:
                return keys[0]
        raise SignInRefused("the ID token of the provider is signed with an unknown key")

    async def user_info(self, url: str, access_token: str, claims: Mapping[str, object]) -> dict[str, Any]:
        """Return claims of the user info endpoint that the ID token does not have. Raises SignInRefused if they are of
        another subject, ProviderUnavailable."""
        content = await self.fetch(url, "user info", {"authorization": f"Bearer {access_token}"})
        info = self.parse(content, "user info")
        if info.get("sub") != claims["sub"]:
            raise SignInRefused("the user info of the provider is about another subject than the ID token")
        return {name: value for name, value in info.items() if name not in claims}


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Transport that ends a response after MAX_RESPONSE_BYTES, as sent and as decompressed."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"  # a small compressed body cannot become a large one
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ProviderUnavailable("the answer is compressed")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = BoundedStream(response.stream)
        return response


class BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self.stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self.stream:
            size += len(part)
            if size > MAX_RESPONSE_BYTES:
                raise ProviderUnavailable(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self.stream.aclose()


async def bounded(request: Awaitable[T]) -> T:
    """Await a request to the provider. Raises ProviderUnavailable if it fails or takes longer than REQUEST_SECONDS."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await request
    except TimeoutError as error:
        raise ProviderUnavailable(f"no answer within {REQUEST_SECONDS:g} s") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderUnavailable(f"{type(error).__name__}") from error


def usable_key(described: object) -> Key | None:
    """Return a public key for signatures, None for any other or an invalid one."""
    if not isinstance(described, dict) or described.get("use") == "enc":
        return None
    if described.get("kty") not in ALGORITHMS.values():  # `oct` is a shared secret
        return None
    try:
        key = JWKRegistry.import_key(described)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    too_short = isinstance(key.raw_value, RSAPublicKey) and key.raw_value.key_size < MIN_RSA_BITS
    return None if too_short or key.is_private else key


def matching_keys(keys: list[Key], header: Mapping[str, object]) -> list[Key]:
    """Return the keys that can have made the signature of a header: of its id, its algorithm and their type."""
    algorithm, key_id = str(header.get("alg")), header.get("kid")
    of_type = [key for key in keys if key.key_type == ALGORITHMS[algorithm] and key.alg in (None, algorithm)]
    return [key for key in of_type if key_id is None or key.kid == key_id]


def refused_code(error: str) -> str:
    if error == "invalid_client":
        return "the provider does not accept ROTA_OIDC_CLIENT_ID and ROTA_OIDC_CLIENT_SECRET"
    return f"the provider refused the sign-in ({error or 'no reason'}); it may have been used already: start again"


def printable(value: object) -> str:
    """Return a short text of the provider for messages and logs, without control characters."""
    text = "" if value is None else str(value)[:200]
    return "".join(character if character.isprintable() else "?" for character in text)
