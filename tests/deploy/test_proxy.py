"""The example configurations of TLS proxies are accepted by the proxies themselves."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.pythons import ROOT

PROXY = ROOT / "deploy" / "proxy"


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_the_page_shows_the_configuration_as_it_is(name: str) -> None:
    assert (PROXY / name).read_text() in (ROOT / "docs" / "tls-proxy.md").read_text()


def test_nginx_accepts_the_configuration(tmp_path: Path) -> None:
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    key, certificate = tmp_path / "privkey.pem", tmp_path / "fullchain.pem"
    subject = ["-subj", "/CN=rota.example.com", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    create = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject]
    subprocess.run(create, check=True, capture_output=True, timeout=60)
    site = (PROXY / "nginx.conf").read_text().replace("/etc/ssl/rota", str(tmp_path))
    main = tmp_path / "nginx.conf"
    temporary = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi"))
    temporary += f" uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;"
    main.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{ access_log off; {temporary}\n{site}\n}}\n")
    command = ["nginx", "-t", "-q", "-p", str(tmp_path), "-c", str(main), "-e", "stderr"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "[warn]" not in answer.stderr


def test_caddy_accepts_the_configuration(tmp_path: Path) -> None:
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    command = ["caddy", "adapt", "--adapter", "caddyfile", "--config", str(PROXY / "Caddyfile"), "--validate"]
    home = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    answer = subprocess.run(command, env=home, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    formatted = subprocess.run(
        ["caddy", "fmt", str(PROXY / "Caddyfile")], capture_output=True, text=True, timeout=60, check=False
    )
    assert formatted.stdout == (PROXY / "Caddyfile").read_text()
