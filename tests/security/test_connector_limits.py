"""Servers that cheat the HTTP and mail connectors: bodies that inflate or do not end, certificates of others."""

import asyncio
import gzip
import ssl
import subprocess
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rota import Applied, AuthError, LogicError
from rota.connectors import Http, Smtp
from rota.core.effects import surely_failed
from rota.core.errors import Invalid


@asynccontextmanager
async def listening(handle: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answering(status: str, headers: str, body: bytes) -> Callable[..., Any]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body)
        writer.close()

    return handle


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
async def test_a_body_that_inflates_is_read_up_to_the_limit(status: str) -> None:
    body = await asyncio.to_thread(bomb)
    headers = f"content-encoding: gzip\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
    async with listening(answering(status, headers, body)) as port:
        http = Http(allow=["127.0.0.1"], private=True)
        tracemalloc.start()
        if status == "200 OK":
            assert await http.get(f"http://127.0.0.1:{port}/") is None
        else:
            with pytest.raises(LogicError, match="400 Bad Request: 0000"):
                await http.get(f"http://127.0.0.1:{port}/")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 * 1024**2


def bomb() -> bytes:
    """About 128 KiB that inflate to 128 MiB."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(b"0" * 1024**2) for _ in range(128)) + packer.flush()


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            pass

    async with listening(handle) as port:
        async with asyncio.timeout(20):
            assert await Http(allow=["127.0.0.1"], private=True).get(f"http://127.0.0.1:{port}/") is None


async def test_compressed_bodies_are_still_read() -> None:
    body = gzip.compress(b'{"a": 1}')
    headers = f"content-encoding: gzip\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    async with listening(answering("200 OK", headers, body)) as port:
        assert await Http(allow=["127.0.0.1"], private=True).get(f"http://127.0.0.1:{port}/") == {"a": 1}


# mail


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=mail",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return both


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class MailServer:
    """Understands enough of SMTP and IMAP, and keeps the lines that it received."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.tls, self.lines = tls, list[bytes]()

    async def smtp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        while line := await reader.readline():
            self.lines.append(line)
            word = line[:4].upper()
            if word == b"EHLO":
                writer.write(b"250-mail\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n")
            elif word == b"STAR":
                writer.write(b"220 go\r\n")
                try:
                    await writer.start_tls(self.tls)
                except (OSError, EOFError):
                    return
            elif word == b"DATA":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                writer.write(b"250 ok\r\n")
            else:
                writer.write(b"235 ok\r\n" if word == b"AUTH" else b"250 ok\r\n")

    async def imap(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK hello\r\n")
        while line := await reader.readline():
            self.lines.append(line)
            tag, word, *_ = line.decode().split()
            if word == "STARTTLS":
                writer.write(f"{tag} OK go\r\n".encode())
                try:
                    await writer.start_tls(self.tls)
                except (OSError, EOFError):
                    return
                continue
            answers = {
                "CAPABILITY": "* CAPABILITY IMAP4REV1 STARTTLS\r\n",
                "SEARCH": "* SEARCH 1\r\n",
                "EXAMINE": "* 1 EXISTS\r\n",
            }
            writer.write((answers.get(word, "") + f"{tag} OK done\r\n").encode())


LOGIN: dict[str, Any] = {"sender": "rota@example.org", "user": "mailuser", "password": "CANARY", "timeout": 20}


@pytest.mark.parametrize("implicit", [False, True])
async def test_a_password_is_sent_only_to_a_server_with_a_valid_certificate(
    server_tls: ssl.SSLContext, certificate: Path, implicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MailServer(server_tls)
    async with listening(server.smtp, server_tls if implicit else None) as port:
        if implicit:
            monkeypatch.setattr("rota.kinds.workflows.connectors.mail.SMTPS_PORT", port)

        def send(**options: Any) -> dict[str, str]:
            smtp = Smtp("127.0.0.1", port, **LOGIN, tls=True, **options)
            return smtp.send("ada@example.org", "Hello", "…", idempotency_key="K1")

        with pytest.raises(AuthError, match="certificate verify failed") as caught:
            await asyncio.to_thread(send)
        assert surely_failed(caught.value)
        assert not any(line.startswith(b"AUTH") for line in server.lines)
        assert await asyncio.to_thread(send, ca=certificate) == {"message_id": "<K1@example.org>"}
        assert any(line.startswith(b"AUTH PLAIN") for line in server.lines)


@pytest.mark.parametrize("implicit", [False, True])
async def test_mail_is_looked_up_only_at_a_server_with_a_valid_certificate(
    server_tls: ssl.SSLContext, certificate: Path, implicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MailServer(server_tls)
    async with listening(server.imap, server_tls if implicit else None) as port:
        if implicit:
            monkeypatch.setattr("rota.kinds.workflows.connectors.mail.IMAPS_PORT", port)

        def find(**options: Any) -> object:
            smtp = Smtp("127.0.0.1", 25, **LOGIN, tls=True, imap="127.0.0.1", imap_port=port, **options)
            return smtp.find("K1", {})

        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(find)
        assert not any(b"LOGIN" in line for line in server.lines)
        assert await asyncio.to_thread(find, ca=certificate) == Applied({"message_id": "<K1@example.org>"})


def test_a_password_without_tls_is_refused_except_on_this_machine() -> None:
    with pytest.raises(Invalid, match="tls"):
        Smtp("mail.example.org", **LOGIN, tls=False)
    assert Smtp("mail.example.org", **LOGIN).tls
    assert not Smtp("localhost", **LOGIN).tls
    assert not Smtp("mail.example.org", sender="rota@example.org").tls
