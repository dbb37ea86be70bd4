"""An agent runs and requests what its owner allowed, and nothing beside it."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from rota.agent import Order, Refused, TransientError
from rota.app.cli import app
from rota.core.addresses import is_public
from rota.kinds.hosts.agent.allow import UrlPattern, allowed_command
from rota.kinds.hosts.agent.job_types import Allowed
from tests.kinds.hosts.test_agent import lines, run

RESTART = ["systemctl restart *"]


def order(job_type: str, **payload: Any) -> Order:
    return Order("J", "R", 1, 7, job_type, payload, {"id": "S", "name": "web", "type": "x", "config": {}})


@pytest.mark.parametrize(
    "command",
    [
        "systemctl restart x; id", "systemctl restart x;id", "systemctl restart x && id", "systemctl restart x | sh",
        "systemctl restart $(id)", "systemctl restart `id`", "systemctl restart ${HOME}", "systemctl restart x\nid",
        "systemctl restart 'x; id'", 'systemctl restart "a b"', "systemctl restart x\\;id", "systemctl restart >f",
        "systemctl restart", "systemctl restart ''", "systemctl restart a b", "systemctl stop x", "id",
        "systemctl restart --root=/x", "systemctl restart -H", "SYSTEMCTL restart x", "x systemctl restart y", "",
        "/tmp/systemctl restart x", "systemctl restart *", "systemctl restart ~root", "systemctl restart 'open",
        "systemctl restart x #", "systemctl restart {a,b}", "systemctl restart \x1b[0m", "systemctl restart x\0",
    ],
)  # fmt: skip
def test_a_pattern_allows_no_command_beside_its_own(command: str) -> None:
    with pytest.raises(Refused):
        allowed_command(RESTART, command)


def test_a_pattern_allows_its_words() -> None:
    assert allowed_command(RESTART, "systemctl  restart 'web-1.service'") == ["systemctl", "restart", "web-1.service"]
    assert allowed_command(["backup-* --to=/srv/* -*"], "backup-db --to=/srv/a -v") == [
        "backup-db",
        "--to=/srv/a",
        "-v",
    ]
    assert allowed_command(["sh -c 'echo hi; id'"], "sh -c 'echo hi; id'") == ["sh", "-c", "echo hi; id"]
    with pytest.raises(Refused):
        allowed_command(["backup-* --to=/srv/*"], "backup-db --to=/srv/$HOME")


def test_an_allowed_command_runs_without_a_shell(tmp_path: Path) -> None:
    allowed: dict[str, Any] = {"shell": ["echo * $HOME", "no-such-command-of-any-host"]}
    done = run(tmp_path / "a", payload={"command": "echo hi '$HOME'"}, allowed=allowed)
    assert done["status"] == "success"
    assert lines(tmp_path / "a") == [["stdout", "hi $HOME"]]
    refused = run(tmp_path / "b", payload={"command": "echo hi; touch proof"}, allowed=allowed, cwd=str(tmp_path))
    assert (refused["status"], refused["error"]["type"]) == ("failed", "Refused")
    assert not (tmp_path / "proof").exists()
    for command in ("no-such-command-of-any-host", "echo"):
        with pytest.raises(Refused):
            Allowed(**allowed).run_shell(order("shell", command=command))


@pytest.mark.parametrize(
    "option",
    [("--allow-shell", "echo 'open"), ("--allow-shell", " "), ("--allow-http", "ftp://x"), ("--allow-http", "a@b")],
)
def test_an_agent_with_an_unreadable_pattern_does_not_start(tmp_path: Path, option: tuple[str, str]) -> None:
    (tmp_path / "agent.json").write_text('{"server": "http://127.0.0.1:9", "host_id": "H", "name": "n", "key": "k"}')
    result = CliRunner().invoke(app, ["agent", "run", "--dir", str(tmp_path), *option])
    assert result.exit_code == 2
    assert option[0] in result.stderr


def test_an_address_of_an_inner_network_is_not_public() -> None:
    inner = (
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.1",
        "198.18.0.1",
    )
    assert [address for address in inner if is_public(address)] == []
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


def test_a_url_pattern_names_hosts_ports_paths_and_networks() -> None:
    public, inner, here = "93.184.216.34", "10.0.0.7", "127.0.0.1"
    for pattern, url, address, allowed in [
        ("https://*.example.com/health", "https://api.example.com/health", public, True),
        ("https://*.example.com/health", "https://api.example.com/health?x=1", public, False),
        ("https://*.example.com/health", "https://api.example.com:8443/health", public, False),
        ("https://*.example.com/health", "http://api.example.com/health", public, False),
        ("https://*.example.com/health", "https://example.com.evil.test/health", public, False),
        ("https://*.example.com/health", "https://api.example.com/health", inner, False),  # rebound
        ("api.example.com", "http://api.example.com:8080/x", public, True),
        ("api.example.com:80*", "http://api.example.com:8080/x", public, True),
        ("api.example.com:80*", "https://api.example.com/x", public, False),
        ("*", "http://any.test/", public, True),
        ("*", "http://any.test/", here, False),
        ("10.0.0.0/8", "http://db.test:9000/x", inner, True),
        ("10.0.0.0/8", "http://db.test:9000/x", here, False),
        ("http://10.0.0.7:9000/*", "http://10.0.0.7:9000/x", inner, True),
        ("http://10.0.0.7:9000/*", "http://10.0.0.7:9001/x", inner, False),
        ("localhost", "http://localhost:8530/", here, True),
        ("localhost", "http://localhost:8530/", inner, False),
        ("localhost", "http://other.test/", here, False),
        ("http://[::1]:8080", "http://[::1]:8080/", "::1", True),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1", True),
    ]:
        known = UrlPattern(pattern)
        assert (known.names(urlsplit(url)) and known.allows(address)) is allowed, (pattern, url, address)


class Listener(HTTPServer):
    """An HTTP server on loopback that keeps the host names and paths that it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str]] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.server.requests.append((self.headers["host"], self.path))
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def listener() -> Any:
    server = Listener()
    yield server
    server.shutdown()
    server.server_close()


def test_an_agent_requests_no_address_that_was_not_named(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"http://127.0.0.1:{listener.server_port}"
    monkeypatch.setenv("http_proxy", here)
    for allowed in (Allowed(), Allowed(http=["*"]), Allowed(http=["http://127.0.0.1", "10.0.0.0/8", "localhost"])):
        for url in (
            f"{here}/",
            f"http://0.0.0.0:{listener.server_port}/",
            f"http://2130706433:{listener.server_port}/",
        ):
            with pytest.raises(Refused):
                allowed.http_check(order("http_check", url=url))
    open_to_all = Allowed(http=["0.0.0.0/0"])
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/", f"http://a@127.0.0.1:{listener.server_port}/", "http://",
                "http://127.0.0.1/a\r\nb", "http://127.0.0.1:99999/"):  # fmt: skip
        with pytest.raises(Refused):
            open_to_all.http_check(order("http_check", url=url))
    assert listener.requests == []
    right = Allowed(http=[f"{here}/*"])
    assert right.http_check(order("http_check", url=f"{here}/up")) == {"status": 200}
    assert right.http_check(order("http_check", url=f"{here}/away", expect_status=302)) == {"status": 302}
    assert [path for _, path in listener.requests] == ["/up", "/away"]
    with pytest.raises(TransientError):
        Allowed(http=["127.0.0.1"]).http_check(order("http_check", url="http://127.0.0.1:9/"))


def test_a_path_that_leads_out_of_an_allowed_one_is_refused(listener: Listener) -> None:
    here = f"http://127.0.0.1:{listener.server_port}"
    allowed = Allowed(http=[f"{here}/public/*"])
    for path in ("../admin", "%2e%2e/admin", "..%2fadmin", "a/../../admin", "..\\admin", "./../admin", "a/%2E./b"):
        with pytest.raises(Refused):
            allowed.http_check(order("http_check", url=f"{here}/public/{path}"))
    assert listener.requests == []
    assert allowed.http_check(order("http_check", url=f"{here}/public/a..b/.c")) == {"status": 200}


def test_a_host_that_no_pattern_names_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{host} was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    allowed = Allowed(http=["https://*.example.com/health", "localhost"])
    for url in ("https://secret.evil.test/health", "https://a.example.com.evil.test/health", "https://a.example.com/x"):
        with pytest.raises(Refused):
            allowed.http_check(order("http_check", url=url))


def test_the_request_goes_to_the_address_that_was_checked(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["127.0.0.1", "169.254.169.254"]  # the second resolution would be rebound
    resolve, port = socket.getaddrinfo, listener.server_port

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        return resolve(answers.pop(0) if host == "rebound.test" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    allowed = Allowed(http=["127.0.0.0/8"])
    assert allowed.http_check(order("http_check", url=f"http://rebound.test:{port}/")) == {"status": 200}
    assert listener.requests == [(f"rebound.test:{port}", "/")]
    assert answers == ["169.254.169.254"]
