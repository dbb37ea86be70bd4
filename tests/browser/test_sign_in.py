"""Sign-in by a real provider in a real browser, against a real server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.access.real_provider import (
    ADA,
    CLIENT_ID,
    CLIENT_SECRET,
    RealProvider,
    free_port,
    installed_modules,
    running_provider,
)
from tests.app.command_line import run, running_server
from tests.browser.live_server import chrome

if chrome() is None:
    pytest.skip("no Chromium here: the sign-in is not tested in a browser", allow_module_level=True)


@contextmanager
def server_with_provider(place: Path) -> Iterator[tuple[str, RealProvider]]:
    """Run Rota and a provider that know each other; yields Rota's URL and the provider."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running_provider(place, url) as provider:
        secret = place / "client-secret"
        secret.write_text(CLIENT_SECRET)
        env = {
            "ROTA_OIDC_ISSUER": provider.issuer,
            "ROTA_OIDC_CLIENT_ID": CLIENT_ID,
            "ROTA_OIDC_CLIENT_SECRET_FILE": str(secret),
            "ROTA_OIDC_ROLES": "rota-admins=admin,rota-ops=operator",
            "ROTA_OIDC_SCOPES": "openid profile email groups",
            "ROTA_OIDC_NAME": "Acme",
            "ROTA_LOG_LEVEL": "debug",
            "ROTA_PUBLIC_URL": url,
        }
        with running_server(place, ROTA_PORT=str(port), **env):
            yield url, provider
        log = (place / "up.log").read_text()
        for secret_text in (CLIENT_SECRET, "code=", "eyJ", "Bearer ", "Basic "):
            assert secret_text not in log


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RealProvider]]:
    installed_modules()
    with server_with_provider(tmp_path_factory.mktemp("sign-in")) as running:
        yield running


@pytest.fixture
def window(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


def sign_in(window: Page, login: str) -> None:
    """Click through the login page and the pages of the provider."""
    window.get_by_role("link", name="Sign in with Acme").click()
    window.locator("[name=login]").fill(login)
    window.locator("[name=password]").fill("any")
    window.get_by_role("button", name="Sign-in").click()
    window.get_by_role("button", name="Continue").click()


def test_a_person_signs_in_works_and_signs_out(window: Page, site: tuple[str, RealProvider]) -> None:
    url, provider = site
    provider.change("ada", **ADA)
    window.goto(f"{url}/schedules")
    expect(window.get_by_role("heading", name="Log in")).to_be_visible()
    sign_in(window, "ada")
    expect(window).to_have_url(f"{url}/schedules")
    expect(window.locator(".who")).to_contain_text("Ada")
    cookies = {cookie["name"]: cookie for cookie in window.context.cookies(url)}
    assert (cookies["rota_session"]["httpOnly"], cookies["rota_session"]["sameSite"]) == (True, "Lax")
    assert "rota_oidc" not in cookies
    window.goto(f"{url}/settings")
    expect(window.get_by_text("by the provider")).to_be_visible()
    expect(window.get_by_text("Chrome on Linux")).to_be_visible()
    window.locator(".who summary").click()
    window.get_by_role("button", name="Log out").click()
    expect(window.get_by_text("You are logged out of Rota")).to_be_visible()
    window.get_by_role("link", name="Sign out of Acme").click()
    window.get_by_role("button", name="Yes, sign me out").click()
    expect(window).to_have_url(f"{url}/login")
    window.goto(url)
    expect(window.get_by_role("heading", name="Log in")).to_be_visible()
    window.get_by_role("link", name="Sign in with Acme").click()
    expect(window.locator("[name=login]")).to_be_visible()  # the provider asks again


def test_a_person_without_a_role_sees_why(window: Page, site: tuple[str, RealProvider]) -> None:
    url, provider = site
    provider.change("bob", name="Bob", groups=["staff"])
    window.goto(f"{url}/login")
    sign_in(window, "bob")
    expect(window.get_by_role("alert")).to_contain_text("none of your groups has a role in Rota")
    expect(window.get_by_label("Password")).to_be_visible()


def test_service_accounts_are_managed_on_the_settings_page(window: Page, site: tuple[str, RealProvider]) -> None:
    url, provider = site
    provider.change("grace", name="Grace", groups=["rota-admins"])
    window.goto(f"{url}/settings")
    sign_in(window, "grace")
    section = window.locator("section", has=window.get_by_role("heading", name="Service accounts"))
    section.get_by_role("button", name="Add service account").first.click()
    section.locator("[name=name]").first.fill("deploy")
    section.get_by_role("button", name="Add", exact=True).click()
    expect(section.locator("tr", has_text="deploy")).to_contain_text("operator")
    section.get_by_role("button", name="New key").first.click()
    section.locator("tr [name=name]").first.fill("ci")
    section.get_by_role("button", name="Create").click()
    expect(window.locator("main")).to_contain_text("rota_")
    window.goto(f"{url}/settings")
    row = section.locator("tr", has_text="deploy")
    row.get_by_role("button", name="Disable").first.click()
    row.locator("[name=audit_reason]").nth(0).fill("not needed")
    row.get_by_role("button", name="Disable").nth(1).click()
    expect(section.locator(".badge", has_text="disabled")).to_be_visible()


def test_a_server_starts_while_the_provider_is_away(window: Page, tmp_path: Path) -> None:
    port = free_port()
    env = {
        "ROTA_OIDC_ISSUER": f"http://127.0.0.1:{free_port()}",
        "ROTA_OIDC_CLIENT_ID": "rota",
        "ROTA_OIDC_ROLES": "ops=operator",
    }
    with running_server(tmp_path, ROTA_PORT=str(port), **env):
        added = run(tmp_path, "user", "add", "ada@example.org", "--role", "viewer", ROTA_PASSWORD="correct horse")
        assert added.returncode == 0, added.stderr
        window.goto(f"http://127.0.0.1:{port}/login")
        window.get_by_role("link", name="Sign in with 127.0.0.1").click()
        expect(window.get_by_role("alert")).to_contain_text("cannot be used")
        window.get_by_label("E-mail").fill("ada@example.org")
        window.get_by_label("Password").fill("correct horse")
        window.get_by_role("button", name="Log in").click()
        expect(window.locator(".who")).to_contain_text("ada@example.org")
        listed = json.loads(run(tmp_path, "-o", "json", "session", "list").stdout)["items"]
        assert [session["method"] for session in listed] == ["password"]
        ended = run(tmp_path, "session", "rm", "--all", "--user", "ada@example.org")
        assert (ended.returncode, ended.stderr.strip()) == (0, "1 sessions ended")
        window.reload()
        expect(window.get_by_role("heading", name="Log in")).to_be_visible()
