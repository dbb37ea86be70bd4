"""Settings: where they come from, and that each is documented."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from rota.app.settings import Settings
from rota.core.errors import Invalid
from rota.core.policy import Backoff, Retry
from rota.engine.engine_settings import ObjectStoreSettings

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
        unset = (*unset, "oidc_issuer", "oidc_client_id", "oidc_client_secret", "oidc_roles", "oidc_name")
        unset = (
            *unset,
            "artifacts_url",
            "artifacts_endpoint",
            "dask_address",
            "ray_address",
            "container_command",
            "kubernetes_config",
            "exit_when_idle",
            "reports_url",
        )
        unset = (*unset, "catch_up_slots", "catch_up_run_seconds", "catch_up_credits")
        mail = ("smtp_url", "smtp_from", "heartbeat_url", "pipelines_url")
        if name not in (*unset, "warehouse_dir", "repair_command", "metrics_port", "sentry_dsn", *mail):
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
        ("artifacts_url", "https://bucket/secret"),
        ("artifacts_url", "s3:///prefix"),
        ("artifacts_url", "s3://key:secret@bucket/prefix"),
        ("artifacts_url", "az://container/prefix?sig=secret"),
        ("artifacts_url", "file://relative"),
        ("artifacts_endpoint", "minio:9000"),
        ("artifacts_endpoint", "https://user:secret@minio:9000"),
        ("artifacts_inline_kb", -1),
        ("max_artifact_mb", 50_001),
        ("pipelines_url", "mysql://user:secret@host/db"),
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


PROVIDER = {"oidc_issuer": "https://login.example.com", "oidc_client_id": "rota", "oidc_roles": "ops=operator"}


def test_roles_of_groups_are_parsed() -> None:
    for text, roles in (
        (
            "rota-admins=admin, rota-ops=operator,*=viewer",
            {"rota-admins": "admin", "rota-ops": "operator", "*": "viewer"},
        ),
        ("cn=ops=operator", {"cn=ops": "operator"}),
        ('{"cn=ops,ou=groups": "operator"}', {"cn=ops,ou=groups": "operator"}),
    ):
        settings = Settings.load(**{**PROVIDER, "oidc_roles": text}).login_settings()
        assert settings.oidc is not None
        assert settings.oidc.roles == roles
    assert Settings.load().login_settings().oidc is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"oidc_roles": "ops"}, "without a role"),
        ({"oidc_roles": "ops=root"}, "without a role"),
        ({"oidc_roles": "=admin"}, "without a role"),
        ({"oidc_roles": "a=viewer,a=admin"}, "names a group twice"),
        ({"oidc_roles": '{"a": ["admin"]}'}, "without a role"),
        ({"oidc_roles": "{"}, "is not a json object"),
        ({"oidc_roles": ""}, "without oidc_roles"),
        ({"oidc_client_id": ""}, "without oidc_client_id"),
        ({"oidc_issuer": "http://login.example.com"}, "https"),
        ({"oidc_issuer": "https://user@login.example.com"}, "is not the url of an issuer"),
        ({"oidc_issuer": "login.example.com"}, "is not the url of an issuer"),
        ({"oidc_issuer": "https://accounts.google.com", "oidc_roles": "*=viewer"}, "google account"),
        ({"oidc_scopes": "profile"}, "openid"),
        ({"host": "0.0.0.0"}, "without public_url"),
    ],
)
def test_a_provider_that_would_not_work_or_is_not_safe_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as error:
        Settings.load(**{**PROVIDER, "oidc_client_secret": "a-secret", **changes})
    assert "a-secret" not in str(error.value)


def test_a_client_secret_is_read_from_a_file_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("a-secret\n")
    monkeypatch.setenv("ROTA_OIDC_CLIENT_SECRET_FILE", str(tmp_path / "secret"))
    settings = Settings.load(**PROVIDER, password_login="off")
    assert settings.secrets()["oidc_client_secret"] == "a-secret"
    login = settings.login_settings()
    assert login.oidc is not None
    assert (login.oidc.client_secret, login.passwords) == ("a-secret", False)
    assert "a-secret" not in repr(login)


def test_an_object_store_is_set_completely_or_not_at_all() -> None:
    assert Settings.load().engine_settings().objects is None
    settings = Settings.load(artifacts_url="s3://bucket/prefix/", artifacts_endpoint="http://minio:9000/")
    assert settings.engine_settings().objects == ObjectStoreSettings("s3://bucket/prefix", "http://minio:9000")
    assert Settings.load(artifacts_url="file:///data/artifacts", max_artifact_mb=2000).max_artifact_mb == 2000
    with pytest.raises(Invalid, match="max_artifact_mb is above 1000, which needs artifacts_url"):
        Settings.load(max_artifact_mb=2000)
    with pytest.raises(Invalid, match="artifacts_endpoint is set without an artifacts_url that begins with s3"):
        Settings.load(artifacts_url="gs://bucket", artifacts_endpoint="http://minio:9000")
