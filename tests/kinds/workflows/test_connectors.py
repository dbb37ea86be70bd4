"""The connectors that come with Rota, against real servers on this machine."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rota import Applied, AuthError, LogicError, NotApplied, PermissionDenied, TransientError, Unsure
from rota.connectors import Files, Http, Smtp, Sql
from rota.core.effects import surely_failed


@asynccontextmanager
async def listening(handle: object) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)  # type: ignore[arg-type]
    async with server:
        yield server.sockets[0].getsockname()[1]


# files


def test_a_line_is_found_again_by_its_key(tmp_path: Path) -> None:
    files = Files(tmp_path)
    asked: dict[str, Any] = {"path": "out.csv", "row": ["a", 1]}
    assert files.find("K1", asked) == NotApplied()
    files.append_csv(**asked, idempotency_key="K1")
    files.append_csv(path="out.csv", row=["b, c", 2], idempotency_key="K2")
    assert files.find("K1", asked) == Applied()
    assert files.find("K3", asked) == NotApplied()
    assert files.read_csv("out.csv") == [["a", "1", "K1"], ["b, c", "2", "K2"]]


def test_a_partial_line_is_not_found_and_corrupts_no_other(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / "out.csv").write_text("a,1,K")  # a process died while it wrote K1's line
    assert files.find("K1", {"path": "out.csv", "row": ["a", 1]}) == NotApplied()
    files.append_csv(path="out.csv", row=["b"], idempotency_key="K2")
    assert files.read_csv("out.csv")[-1] == ["b", "K2"]


@pytest.mark.parametrize("path", ["../out.csv", "/etc/passwd", "link/out.csv"])
def test_files_stay_below_their_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "link").symlink_to(tmp_path)
    with pytest.raises(LogicError, match="is not below"):
        Files(tmp_path / "home").append_csv(path=path, row=[1], idempotency_key="K")


# sql


async def test_a_row_is_found_again_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE mail (sender TEXT, idempotency_key TEXT UNIQUE)")
    outside = Sql(f"sqlite:///{path}")
    asked: dict[str, Any] = {"table": "mail", "row": {"sender": "ada"}}
    assert await outside.find("K1", asked) == NotApplied()
    await outside.insert(**asked, idempotency_key="K1")
    assert await outside.find("K1", asked) == Applied({"idempotency_key": "K1"})
    assert await outside.query("SELECT sender FROM mail WHERE sender = :who", {"who": "ada"}) == [{"sender": "ada"}]
    with pytest.raises(LogicError, match="UNIQUE"):
        await outside.insert(**asked, idempotency_key="K1")
    with pytest.raises(LogicError, match="can only read"):
        await outside.query("DELETE FROM mail")
    assert len(await outside.query("SELECT * FROM mail")) == 1  # reading changes nothing
    await outside.database.close()


# http


class Service:
    """Returns prepared answers and records requests."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.status = "200 OK"
        self.known: set[str] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for line in head[1:] if line for name, _, value in [line.partition(": ")]}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.seen.append((head[0], headers, body))
        status = self.status
        if head[0].startswith("GET /status/"):
            status = "200 OK" if head[0].split()[1].removeprefix("/status/") in self.known else "404 Not Found"
        if status != "none":
            answer = b'{"ok": true}'
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n"
                "location: http://127.0.0.1/\r\n\r\n".encode()
                + answer
            )
        writer.close()


async def test_a_request_carries_its_key_and_is_asked_about() -> None:
    service = Service()
    async with listening(service.handle) as port:
        url = f"http://127.0.0.1:{port}"
        http = Http(allow=[f"127.0.0.1:{port}"], private=True, status_url=f"{url}/status/{{key}}")
        assert await http.send(f"{url}/orders", {"a": 1}, idempotency_key="K1") == {"ok": True}
        line, headers, body = service.seen[-1]
        assert (line, headers["idempotency-key"], body) == ("POST /orders HTTP/1.1", "K1", b'{"a":1}')
        asked = {"url": f"{url}/orders", "json": {"a": 1}}
        assert await http.find("K1", asked) == NotApplied()
        service.known.add("K1")
        assert await http.find("K1", asked) == Applied({"ok": True})
        assert await Http(allow=["127.0.0.1"], private=True).find("K1", asked) == Unsure()
        replays = Http(allow=["127.0.0.1"], private=True, replays=True)
        assert await replays.find("K1", asked) == Applied({"ok": True})
        assert service.seen[-1][1]["idempotency-key"] == "K1"


@pytest.mark.parametrize(
    ("status", "error", "sure"),
    [
        ("401 Unauthorized", AuthError, True),
        ("403 Forbidden", PermissionDenied, True),
        ("404 Not Found", LogicError, True),
        ("302 Found", LogicError, True),
        ("429 Too Many Requests", TransientError, True),
        ("500 Oops", TransientError, False),
        ("none", TransientError, False),
    ],
)
async def test_refusals_have_their_class_and_say_what_is_sure(status: str, error: type[Exception], sure: bool) -> None:
    service = Service()
    service.status = status
    async with listening(service.handle) as port:
        http = Http(allow=["127.0.0.1"], private=True)
        with pytest.raises(error) as caught:
            await http.send(f"http://127.0.0.1:{port}/", idempotency_key="K")
        assert surely_failed(caught.value) is sure


async def test_only_allowed_hosts_and_public_addresses_are_reached() -> None:
    http = Http(allow=["localhost", "169.254.169.254"])
    for url in ("http://example.org/", "ftp://localhost/", "http://localhost@example.org/"):
        with pytest.raises(PermissionDenied, match="not among the hosts"):
            await http.get(url)
    for url in ("http://localhost/", "http://169.254.169.254/latest"):
        with pytest.raises(PermissionDenied, match="not a public address"):
            await http.get(url)


async def test_no_spelling_of_an_inner_address_is_reached() -> None:
    hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "fe80::1",
        "fd00::1",
    ]
    http = Http(allow=hosts)
    for host in hosts:
        url = f"http://[{host}]/" if ":" in host else f"http://{host}/"
        with pytest.raises(PermissionDenied, match="not a public address"):
            await http.get(url)
        for method in ("POST", "DELETE", "CONNECT", "TRACE"):
            with pytest.raises(PermissionDenied, match="not a public address"):
                await http.send(url, method=method, idempotency_key="K")


async def test_a_server_that_cannot_be_reached_was_surely_not_asked() -> None:
    async with listening(Service().handle) as port:
        pass
    with pytest.raises(TransientError) as caught:
        await Http(allow=["127.0.0.1"], private=True).send(f"http://127.0.0.1:{port}/", idempotency_key="K")
    assert surely_failed(caught.value)


# smtp


class Mailbox:
    """An SMTP and an IMAP server of few words."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.recipient = b"250 ok\r\n"

    async def smtp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                self.mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
                writer.write(b"250 taken\r\n")
            else:
                writer.write(self.recipient if word == b"RCPT" else b"250 ok\r\n")
            if word == b"QUIT":
                break
        writer.close()

    async def imap(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK hello\r\n")
        while line := await reader.readline():
            tag, word, *rest = line.decode().split()
            if word == "SEARCH":
                delivered = any(rest[-1].strip('"') in mail for mail in self.mails)
                writer.write(b"* SEARCH 1\r\n" if delivered else b"* SEARCH\r\n")
            answers = {"CAPABILITY": "* CAPABILITY IMAP4REV1\r\n", "EXAMINE": "* 1 EXISTS\r\n"}
            writer.write((answers.get(word, "") + f"{tag} OK done\r\n").encode())
        writer.close()


async def test_a_mail_is_found_again_by_its_message_id() -> None:
    box = Mailbox()
    async with listening(box.smtp) as port, listening(box.imap) as imap_port:
        smtp = Smtp(
            "127.0.0.1",
            port,
            sender="rota@example.org",
            imap="127.0.0.1",
            imap_port=imap_port,
            timeout=10,
        )
        asked = {"to": "ada@example.org", "subject": "Hello", "text": "…"}

        def send() -> dict[str, str]:
            return smtp.send("ada@example.org", "Hello", "…", idempotency_key="K1")

        assert await asyncio.to_thread(send) == {"message_id": "<K1@example.org>"}
        assert "Message-ID: <K1@example.org>" in box.mails[0]
        assert await asyncio.to_thread(smtp.find, "K1", asked) == Applied({"message_id": "<K1@example.org>"})
        assert await asyncio.to_thread(smtp.find, "K2", asked) == NotApplied()
        assert Smtp("127.0.0.1", port, sender="a@b").find("K1", asked) == Unsure()
        for code, error in ((b"450 later\r\n", TransientError), (b"550 nobody\r\n", LogicError)):
            box.recipient = code
            with pytest.raises(error) as caught:
                await asyncio.to_thread(send)
            assert surely_failed(caught.value)
