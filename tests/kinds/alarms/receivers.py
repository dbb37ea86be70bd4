"""Real receivers of messages on loopback: a mail server with TLS, and a receiver of webhooks."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler

SUBJECT_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"


@dataclass
class Certificates:
    """A certificate authority of our own, and a certificate for localhost that it signed."""

    ca: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificates(folder: Path) -> Certificates:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Test CA")
    openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text(SUBJECT_NAMES)
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


class Mailbox(MessageHandler):
    """Keeps the mails that the server accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.mails.append(message)


@dataclass
class MailServer:
    port: int
    mailbox: Mailbox

    @property
    def mails(self) -> list[Message]:
        return self.mailbox.mails


@contextmanager
def mail_server(certificates: Certificates, *, starttls: bool = False) -> Iterator[MailServer]:
    """A mail server that speaks TLS from the start, or demands STARTTLS."""
    mailbox = Mailbox()
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = certificates.context()
    tls: dict[str, Any] = {"tls_context": context, "require_starttls": True} if starttls else {"ssl_context": context}
    controller = Controller(mailbox, hostname="127.0.0.1", port=port, **tls)
    controller.start()
    try:
        yield MailServer(port, mailbox)
    finally:
        controller.stop()


@dataclass
class Receiver:
    """A receiver of webhooks; `statuses` are its next answers, then 204."""

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@contextmanager
def webhook_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
