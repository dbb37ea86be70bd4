"""How messages leave: e-mail, signed webhooks, services through Apprise. Each returns the answer of the receiver, which
proves that it arrived, or raises TransientError or, if another attempt cannot help, GiveUp."""

import asyncio
import re
import smtplib
import ssl
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from rota.core import webhooks
from rota.core.addresses import is_loopback
from rota.core.errors import GiveUp, Invalid, PermissionDenied, TransientError
from rota.frame.http.outgoing import pin
from rota.kinds.alarms.settings import AlarmSettings
from rota.version import DISTRIBUTION

SECONDS = 20.0  # that a receiver may take
ANSWER_CHARACTERS = 300
EMAIL = re.compile(r"[^@\s,;<>\"]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
SMTPS_PORT, SUBMISSION_PORT = 465, 587
# Schemas of Apprise: on the machine of the server, and with hosts in parameters instead of the address
LOCAL_SERVICES = frozenset({"syslog", "vapid", "dbus", "kde", "qt", "glib", "gnome", "macosx", "windows", "blink1"})
OWN_HOST_SERVICES = frozenset({"nostr"})
Message = Mapping[str, Any]


# addresses, as users give them


def check_address(value: object, field: str = "address") -> str:
    """Return an e-mail address. Raises Invalid."""
    if not isinstance(value, str) or not EMAIL.fullmatch(value) or parseaddr(value)[1] != value:
        raise Invalid(field, value, "is not an e-mail address such as ops@example.org")
    return value


def check_url(value: object, field: str = "address") -> str:
    """Return the URL of a webhook. Raises Invalid."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
            raise ValueError
    except ValueError:
        raise Invalid(field, value, "is not a URL such as https://example.org/hook") from None
    if parts.username or parts.password:
        raise Invalid(field, f"{parts.scheme}://…@{parts.hostname}", "has a password; deliveries are signed instead")
    return str(value)


def service_of(url: object, *, private: bool, field: str = "url") -> str:
    """Return the name of the service that a URL of Apprise stands for. Raises Invalid, without the URL: it has
    secrets."""
    service = None if not isinstance(url, str) else instantiate(url)
    if service is None:
        raise Invalid(field, "…", "is not a URL of Apprise such as slack://TokenA/TokenB/TokenC")
    if (refusal := refusal_of(service, private=private)) is not None:
        raise Invalid(field, "…", refusal)
    return str(service.service_name)


def refusal_of(service: Any, *, private: bool) -> str | None:
    """Return why a service of Apprise is not used; None if it is. Templates and keys that it loads from a path or a URL
    would let a user read files and private addresses of the server. Services on a host that the URL names need
    `private`: Apprise resolves it itself."""
    from apprise import AppriseAttachment

    holders = (service, getattr(service, "pgp", None), getattr(service, "pem", None))
    fields = [value for holder in holders if holder is not None for value in vars(holder).values()]
    if any(isinstance(value, AppriseAttachment) and len(value) for value in fields):
        return "names a file or a URL that the server would read; leave out its template or key file"
    schemas = service.schemas()
    if not schemas.isdisjoint(LOCAL_SERVICES):
        return "is a service that reads files or writes on the machine of the server; use another one"
    names_host = any("{host}" in str(template) for template in service.templates)
    if not private and (names_host or not schemas.isdisjoint(OWN_HOST_SERVICES)):
        return "names its own host; ROTA_WEBHOOK_PRIVATE=true allows that"
    return None


def instantiate(url: str) -> Any:
    try:
        import apprise
    except ImportError as error:
        raise Invalid("type", "apprise", f"needs Apprise: install {DISTRIBUTION}[apprise]") from error
    return apprise.Apprise.instantiate(url)


# e-mail


async def send_email(settings: AlarmSettings, address: str, message: Message, message_id: str) -> str:
    """Send an e-mail through the server of ROTA_SMTP_URL; returns the server's answer."""
    if not settings.smtp_url:
        raise GiveUp("no e-mail can be sent: set ROTA_SMTP_URL, such as smtps://mail.example.org")
    return await asyncio.to_thread(send_blocking, settings, address, message, message_id)


def send_blocking(settings: AlarmSettings, address: str, message: Message, message_id: str) -> str:
    sender = settings.smtp_from or f"rota@{urlsplit(settings.smtp_url).hostname}"
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, address, one_line(message["title"])
    mail["Date"] = format_datetime(datetime.fromisoformat(message["timestamp"]))
    mail["Message-ID"] = f"<{message_id}@{sender.partition('@')[2] or 'rota'}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message["text"])
    try:
        with connect(settings.smtp_url) as server:
            server.ehlo_or_helo_if_needed()
            for step in (server.mail(sender), server.rcpt(address), server.data(mail.as_bytes())):
                code, answer = step[0], step[1].decode(errors="replace")
                if code >= 400:
                    error = GiveUp if code >= 500 else TransientError
                    raise error(
                        f"the mail server refused the message to {address}: {code} {answer[:ANSWER_CHARACTERS]}"
                    )
            return f"{code} {answer[:ANSWER_CHARACTERS]}"
    except smtplib.SMTPAuthenticationError as error:
        raise GiveUp(f"the mail server refused the login of ROTA_SMTP_URL: {error.smtp_code}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise TransientError(f"{urlsplit(settings.smtp_url).hostname}: {type(error).__name__}: {error}") from error


def connect(url: str) -> smtplib.SMTP:
    """Connect and log in. TLS is verified, for the machine's authorities or those in the file of `?ca=…`; only a server
    on loopback may do without."""
    parts = urlsplit(url)
    host, query = parts.hostname or "", parse_qs(parts.query)
    ca = query.get("ca", [None])[0]
    context = ssl.create_default_context(cafile=ca)
    if parts.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, parts.port or SMTPS_PORT, timeout=SECONDS, context=context)
    else:
        server = smtplib.SMTP(host, parts.port or SUBMISSION_PORT, timeout=SECONDS)
        try:
            if ca is not None or not is_loopback(host):
                server.starttls(context=context)
        except BaseException:
            server.close()
            raise
    if parts.username:
        try:
            server.login(unquote(parts.username), unquote(parts.password or ""))
        except BaseException:
            server.close()
            raise
    return server


def one_line(text: str) -> str:
    return " ".join(text.split())[:300]


# webhooks


async def send_webhook(
    settings: AlarmSettings, url: str, secret: str, message: Message, message_id: str, now: datetime
) -> str:
    """Send a message as a Standard Webhook; returns the status of the response. `message_id` is the same in all
    attempts: receivers recognise repetitions by it."""
    body = orjson.dumps({name: message[name] for name in ("type", "timestamp", "data")})
    timestamp = int(now.timestamp())
    signed = {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": webhooks.sign(secret, message_id, timestamp, body),
    }
    return await request("POST", url, private=settings.webhook_private, headers=signed, body=body)


async def send_heartbeat(settings: AlarmSettings) -> str:
    """Request the URL of the outgoing heartbeat, which the operator sets; returns the status of the response."""
    return await request("GET", settings.heartbeat_url, private=True, headers={}, body=b"")


async def request(method: str, url: str, *, private: bool, headers: Mapping[str, str], body: bytes) -> str:
    """Send a request without following redirects; returns the status of a success."""
    import httpx  # imported here: it takes long to load

    host = urlsplit(url).hostname
    try:
        target = await pin(url, private=private)
        async with (
            httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client,
            client.stream(
                method, target.url, headers={**headers, **target.headers}, extensions=target.extensions, content=body
            ) as response,
        ):
            status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    except PermissionDenied as error:
        raise GiveUp(f"{error.message}; ROTA_WEBHOOK_PRIVATE=true allows it") from error
    except (httpx.HTTPError, OSError) as error:
        raise TransientError(f"{host}: {type(error).__name__}: {error}") from error
    if response.status_code < 300:
        return status
    is_transient = response.status_code in (408, 425, 429) or response.status_code >= 500
    raise (TransientError if is_transient else GiveUp)(f"{host} answered {status}")


# services


async def send_apprise(settings: AlarmSettings, url: str, message: Message) -> str:
    """Send a message to a service; Apprise says no more than whether it was accepted. The URL is checked again: the
    setting, or the services of Apprise, may have changed since it was stored."""
    try:
        service = instantiate(url)
    except Invalid as error:
        raise GiveUp(error.message) from error
    if service is None:
        raise GiveUp("the URL of the channel is not one of this version of Apprise")
    if (refusal := refusal_of(service, private=settings.webhook_private)) is not None:
        raise GiveUp(f"the URL of the channel {refusal}")
    accepted = await asyncio.to_thread(service.notify, body=message["text"], title=one_line(message["title"]))
    if not accepted:
        raise TransientError(f"{service.service_name} did not accept the message")
    return f"accepted by {service.service_name}"
