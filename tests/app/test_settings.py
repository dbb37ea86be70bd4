"""Settings: where they come from, and that each is documented."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from rota.app.settings import Settings
from rota.core.errors import Invalid
from rota.core.policy import Backoff, Retry

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


def test_each_setting_has_its_line_in_the_docs() -> None:
    documented = set(re.findall(r"^\| `(ROTA_[A-Z_]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert documented == {f"ROTA_{name.upper()}" for name in Settings.model_fields} | {
        "ROTA_SERVER",
        "ROTA_KEY",
        "ROTA_PROFILE",
    }


def test_the_defaults_in_the_docs_are_the_defaults() -> None:
    documented = dict(re.findall(r"^\| `(ROTA_[A-Z_]+)` \| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    for name, field in Settings.model_fields.items():
        unset: tuple[str, ...] = (
            "database_url",
            "queues",
            "service_token",
            "graph_endpoint",
            "max_schedules_per_task",
            "trace_url",
        )
        unset = (*unset, "orgs", "run_as", "default_timeout_seconds", "trusted_proxies", "public_url", "allowed_hosts")
        if name not in (*unset, "warehouse_dir", "repair_command"):
            assert documented[f"ROTA_{name.upper()}"] == str(field.default), name


def test_the_database_lies_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load().database_url == f"sqlite:///{tmp_path}/.rota/rota.db"
    assert Settings.load(data_dir=Path("x")).database_url == f"sqlite:///{tmp_path}/x/rota.db"


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_PORT", "1")
    monkeypatch.setenv("ROTA_QUEUES", "a, b")
    monkeypatch.setenv("ROTA_CONCURRENCY", "")
    assert Settings.load(port=2).port == 2
    assert Settings.load(port=None).port == 1
    assert Settings.load().queues == ["a", "b"]
    assert Settings.load(queues="c").queues == ["c"]
    assert Settings.load().concurrency == 50


def test_the_engine_gets_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_LEASE_SECONDS", "1")
    assert Settings.load().engine_settings().lease.total_seconds() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", 0),
        ("lease_seconds", 601),
        ("port", 70_000),
        ("concurrency", 0),
        ("log_level", "loud"),
        ("database_url", "mysql://user:secret@host/db"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(Invalid) as error:
        Settings.load(**{name: value})
    assert error.value.field == name
    assert "secret" not in str(error.value)


def test_the_engine_gets_the_limits_of_workflows_and_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HANDLER", 1), ("RECONCILE", 2), ("WAKE_MIN", 3), ("WAKE_MAX", 4), ("BACKOFF", 6)):
        monkeypatch.setenv(f"ROTA_{name}_SECONDS", str(value))
    monkeypatch.setenv("ROTA_MAX_RETRIES", "5")
    monkeypatch.setenv("ROTA_MAX_BACKOFF_SECONDS", "7")
    engine = Settings.load().engine_settings()
    limits = (engine.handler_limit, engine.reconcile_limit, engine.wake_min, engine.wake_max)
    assert limits == tuple(timedelta(seconds=seconds) for seconds in (1, 2, 3, 4))
    assert engine.transient_retry == Retry(5, 6000, Backoff.EXPONENTIAL, 7000)
    monkeypatch.setenv("ROTA_WAKE_MIN_SECONDS", "5")
    with pytest.raises(Invalid, match="wake_min_seconds is larger than wake_max_seconds"):
        Settings.load()


def test_a_secret_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-of-thirty-two-characters-or-more\n")
    monkeypatch.setenv("ROTA_SERVICE_TOKEN_FILE", str(path))
    assert Settings.load().service_token == "a-token-of-thirty-two-characters-or-more"
    monkeypatch.setenv("ROTA_DATABASE_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(Invalid, match="database_url_file"):
        Settings.load()
    path.write_text("postgresql://user:secret@host/db")
    monkeypatch.setenv("ROTA_DATABASE_URL_FILE", str(path))
    assert Settings.load().database_url == "postgresql://user:secret@host/db"
    monkeypatch.setenv("ROTA_DATABASE_URL", "sqlite:///x.db")
    with pytest.raises(Invalid, match="set one of them"):
        Settings.load()


def test_users_for_commands_are_named_for_all_orgs_or_by_org(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_RUN_AS", "nobody")
    assert Settings.load().engine_settings().user_of("acme") == "nobody"
    monkeypatch.setenv("ROTA_RUN_AS", "acme=build, ops=deploy")
    users = Settings.load().engine_settings()
    assert [users.user_of(org) for org in ("acme", "ops", "default")] == ["build", "deploy", None]
