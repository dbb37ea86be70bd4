"""A real OpenID Connect provider: the npm package `oidc-provider`, which is certified, in its own process."""

import fcntl
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota.core.process_groups import die_with_parent

PACKAGE, VERSION = "oidc-provider", "9.13.3"
MODULES = Path(__file__).parents[2] / ".test-npm"
CLIENT_ID, CLIENT_SECRET = "rota", "the-client-secret-of-the-tests-which-must-not-leak"
PUBLIC_URL = "https://rota.example"
ADA = {"name": "Ada", "email": "ada@example.org", "email_verified": True, "groups": ["staff", "rota-ops"]}


def installed_modules() -> Path:
    """Install the package from the registry, once per checkout. Skips the test where that is impossible."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("the provider for tests needs node and npm")
    MODULES.mkdir(exist_ok=True)
    with (MODULES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = MODULES / f"{PACKAGE}-{VERSION}"
        if not stamp.exists():
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(MODULES), f"{PACKAGE}@{VERSION}"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
            if result.returncode:
                pytest.skip(f"npm cannot install {PACKAGE}: {result.stderr[-300:]}")
            stamp.touch()
    return MODULES


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RealProvider:
    """A running provider. `change` edits its configuration: accounts are read again for each sign-in."""

    path: Path
    issuer: str
    process: "subprocess.Popen[bytes] | None" = None
    config: dict[str, Any] = field(default_factory=dict)

    def change(self, login: str, **claims: Any) -> None:
        self.config["accounts"][login] = claims
        self.path.write_text(json.dumps(self.config))

    def sign_in(self, url: str, login: str) -> str:
        """Sign in at the provider as a person does: log in, consent. Returns the URL to which it sends the browser."""
        with httpx.Client(timeout=60) as browser:
            while url.startswith(self.issuer):
                answer = browser.get(url)
                form = re.search(r'action="([^"]+)" method="post"', answer.text)
                if form:
                    prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
                    assert prompt, answer.text
                    fields = {"prompt": prompt[1], "login": login, "password": "any"}
                    answer = browser.post(str(answer.url.join(form[1])), data=fields)
                assert "location" in answer.headers, answer.text
                url = str(answer.url.join(answer.headers["location"]))
        return url


@contextmanager
def running_provider(place: Path, *rota_urls: str, thin_id_token: bool = True) -> Iterator[RealProvider]:
    """Run a provider that knows Rota at these URLs as a client."""
    modules, port = installed_modules(), free_port()
    provider = RealProvider(place / "provider.json", f"http://127.0.0.1:{port}")
    provider.config = {
        "port": port,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "redirect_uris": [f"{url}/login/oidc/callback" for url in rota_urls],
        "post_logout_redirect_uris": [f"{url}/login" for url in rota_urls],
        "thin_id_token": thin_id_token,  # claims of scopes are then only in the user info
        "accounts": {},
    }
    provider.change("ada", **ADA)
    script = Path(__file__).with_name("oidc_provider.mjs")
    with (place / "provider.log").open("wb") as log:
        provider.process = subprocess.Popen(
            ["node", str(script), str(provider.path), str(modules)],
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    try:
        assert provider.process.stdout is not None
        first = provider.process.stdout.readline()
        assert first == b"ready\n", (place / "provider.log").read_text()
        yield provider
    finally:
        provider.process.terminate()
        provider.process.wait(20)
