"""The mail connector."""

import contextlib
import imaplib
import ipaddress
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from pathlib import Path

from rota.core.effects import Applied, NotApplied, Unsure, not_applied
from rota.core.errors import AuthError, Invalid, LogicError, TransientError, WorkError
from rota.kinds.workflows.connectors.base import mutation

SMTPS_PORT = 465
IMAPS_PORT = 993


class Smtp:
    """Mail: `Smtp("mail.example.org", 587, sender="rota@example.org", user=…, password=…)`.

    TLS is used by default if there is a user, except on loopback: from the start on port 465, else by STARTTLS. The
    certificate must be valid, for the machine's authorities or for those in the file `ca`. A user without TLS is
    refused except on loopback. The key is in the Message-ID; whether a mail was sent is looked up in a folder over
    IMAP, if `imap` names a host. IMAP uses TLS except on loopback, there too if `tls` is set.
    """

    def __init__(
        self, host: str, port: int = 25, *, sender: str, user: str = "", password: str = "", tls: bool | None = None,
        imap: str | None = None, imap_port: int = IMAPS_PORT, folder: str = "Sent", timeout: float = 30,
        ca: str | Path | None = None,
    ) -> None:  # fmt: skip
        if user and tls is False and not is_loopback(host):
            raise Invalid("tls", tls, f"would send the password for {host} without encryption; leave it out")
        self.host, self.port, self.sender, self.user, self.password = host, port, sender, user, password
        self.tls = bool(user) and not is_loopback(host) if tls is None else tls
        self.imap, self.imap_port, self.folder, self.timeout, self.ca = imap, imap_port, folder, timeout, ca

    @mutation(reconcile="find")
    def send(self, to: str | Sequence[str], subject: str, text: str, *, idempotency_key: str) -> dict[str, str]:
        mail = EmailMessage()
        mail["From"], mail["Subject"], mail["Message-ID"] = self.sender, subject, self._id(idempotency_key)
        mail["To"] = to if isinstance(to, str) else ", ".join(to)
        mail.set_content(text)
        server = self._connect()
        try:
            if self.user:
                server.login(self.user, self.password)
            server.send_message(mail)
        except smtplib.SMTPAuthenticationError as error:
            raise not_applied(AuthError(str(error))) from error
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPResponseException) as error:
            raise refused(error) from error
        finally:
            server.close()  # without QUIT: its answer does not affect the mail
        return {"message_id": self._id(idempotency_key)}

    def _connect(self) -> smtplib.SMTP:
        """A connection, encrypted if `tls`. An error means that no mail was sent."""
        server: smtplib.SMTP | None = None
        try:
            if self.tls and self.port == SMTPS_PORT:
                return smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout, context=self._tls())
            server = smtplib.SMTP(self.host, self.port, timeout=self.timeout)
            if self.tls:
                server.starttls(context=self._tls())
        except BaseException as error:
            if server is not None:
                server.close()
            if isinstance(error, ssl.SSLError | smtplib.SMTPNotSupportedError):
                raise not_applied(AuthError(f"{self.host}: no TLS connection: {error}")) from error
            if isinstance(error, smtplib.SMTPException | OSError):
                raise not_applied(TransientError(f"{self.host}: {error}")) from error
            raise
        return server

    def find(self, idempotency_key: str, params: Mapping[str, object]) -> Applied | NotApplied | Unsure:  # noqa: ARG002
        if self.imap is None:
            return Unsure()
        with self._connect_imap(self.imap) as box:
            box.login(self.user, self.password)
            box.select(self.folder, readonly=True)
            _, matches = box.search(None, "HEADER", "Message-ID", self._id(idempotency_key))
        known = bool(matches and matches[0])
        return Applied({"message_id": self._id(idempotency_key)}) if known else NotApplied()

    def _connect_imap(self, host: str) -> imaplib.IMAP4:
        if self.imap_port == IMAPS_PORT:
            return imaplib.IMAP4_SSL(host, self.imap_port, timeout=self.timeout, ssl_context=self._tls())
        box = imaplib.IMAP4(host, self.imap_port, timeout=self.timeout)
        if self.tls or not is_loopback(host):
            try:
                box.starttls(self._tls())
            except BaseException:
                with contextlib.suppress(OSError):
                    box.shutdown()
                raise
        return box

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def _id(self, key: str) -> str:
        return f"<{key}@{self.sender.partition('@')[2] or 'rota'}>"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refused(error: smtplib.SMTPException) -> WorkError:
    """Return the error of a mail that the server refused: transient (4xx) or permanent."""
    refusals = error.recipients.values() if isinstance(error, smtplib.SMTPRecipientsRefused) else ()
    codes = [code for code, _ in refusals] or [getattr(error, "smtp_code", 500)]
    kind = TransientError if all(400 <= code < 500 for code in codes) else LogicError
    return not_applied(kind(str(error)))
