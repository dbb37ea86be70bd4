"""Settings of a process. Each one is an environment variable `ROTA_…` and has its line in docs/settings.md."""

import os
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from rota.access.oidc.settings import OidcSettings, check_issuer, check_open, parse_roles
from rota.app import secrets
from rota.core.addresses import is_loopback
from rota.core.catch_up import CatchUpLimits
from rota.core.errors import Invalid, together
from rota.core.policy import Backoff, Billing, Retry
from rota.core.timing.triggers import parse_interval
from rota.engine.engine_settings import EngineSettings, ObjectStoreSettings
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.pipelines.executor import POSTGRES_SCHEMES, SPARK_HERE
from rota.kinds.tasks.executors.settings import ExecutorSettings, check_dask_address, check_ray_address

if TYPE_CHECKING:
    from rota.access.login_settings import LoginSettings

MAX_OBJECT_MB = 50_000  # of an artifact in an object store: an upload has at most 10,000 parts of 8 MB
MAX_ROW_MB = 1000  # of one in the database
MIN_SERVICE_TOKEN_CHARACTERS = 32  # shorter ones can be guessed


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data_dir: Path = Path(".rota")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8420
    database_url: str = ""
    reports_url: str = ""
    reports_max_lag_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 50
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    exit_when_idle: timedelta | None = None
    queues: list[str] | None = None
    orgs: list[str] | None = None
    run_as: dict[str, str] | None = None
    default_timeout_seconds: Annotated[int | None, Field(ge=1, le=31_536_000)] = None
    lease_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    misfire_grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    catch_up_slots: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    catch_up_run_seconds: Annotated[int | None, Field(ge=1, le=31_536_000)] = None
    catch_up_credits: Annotated[int | None, Field(ge=1, le=1_000_000_000)] = None
    cancel_grace_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    capture_locals: bool = False
    drain_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    keep_success_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    keep_failed_days: Annotated[int, Field(ge=1, le=36_500)] = 90
    keep_signals_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    keep_audit_days: Annotated[int, Field(ge=1, le=36_500)] = 400
    max_schedules_per_task: Annotated[int | None, Field(ge=1)] = None
    max_artifact_mb: Annotated[int, Field(ge=1, le=MAX_OBJECT_MB)] = 10
    artifacts_url: str = ""
    artifacts_endpoint: str = ""
    artifacts_inline_kb: Annotated[int, Field(ge=0, le=10_240)] = 256
    artifacts_keep_days: Annotated[int, Field(ge=0, le=3650)] = 7
    warehouse_dir: Path | None = None
    pipelines_url: str = ""
    pipeline_slots: Annotated[int, Field(ge=1, le=64)] = 4
    billing: Billing = Billing.RECORD
    markup: Annotated[Decimal, Field(ge=1, le=1000)] = Decimal("2.0")
    graph_endpoint: str = ""
    service_token: str = ""
    trace_url: str = ""
    trust_scripts: bool = False
    repair_command: str = ""
    repair_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    handler_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    reconcile_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    wake_min_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
    wake_max_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 86_400
    max_retries: Annotated[int, Field(ge=0, le=1000)] = 5
    backoff_seconds: Annotated[int, Field(ge=1, le=86_400)] = 10
    max_backoff_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    allow_remote: bool = False
    public_url: str = ""
    trusted_proxies: list[str] | None = None
    allowed_hosts: list[str] = []
    oidc_issuer: str = ""
    oidc_client_id: Annotated[str, Field(max_length=500)] = ""
    oidc_client_secret: str = ""
    oidc_roles: dict[str, str] = {}
    oidc_groups_claim: Annotated[str, Field(min_length=1, max_length=200)] = "groups"
    oidc_scopes: Annotated[str, Field(max_length=500)] = "openid profile email"
    oidc_org: Annotated[str, Field(max_length=60)] = "default"
    oidc_name: Annotated[str, Field(max_length=60)] = ""
    password_login: bool = True
    login_session_hours: Annotated[int, Field(ge=1, le=8760)] = 336
    login_idle_hours: Annotated[int, Field(ge=1, le=8760)] = 168
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    metrics_port: Annotated[int | None, Field(ge=1, le=65535)] = None
    metrics_host: str = "127.0.0.1"
    sentry_dsn: str = ""
    dask_address: str = ""
    ray_address: str = ""
    container_command: str = ""
    kubernetes_config: str = ""
    alarm_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    smtp_url: str = ""
    smtp_from: str = ""
    webhook_private: bool = False
    heartbeat_url: str = ""
    heartbeat_seconds: Annotated[int, Field(ge=10, le=86_400)] = 300

    @field_validator("queues", "orgs", "trusted_proxies", mode="before")
    @classmethod
    def split_names(cls, value: object) -> object:
        """Split `a,b` into names; an empty text is None: no restriction."""
        if not isinstance(value, str):
            return value
        return [name.strip() for name in value.split(",") if name.strip()] or None

    @field_validator("exit_when_idle", mode="before")
    @classmethod
    def parse_span(cls, value: object) -> object:
        """Parse `5m`."""
        if not isinstance(value, str):
            return value
        try:
            return parse_interval(value)
        except Invalid as error:
            raise ValueError(error.right) from None

    @field_validator("run_as", mode="before")
    @classmethod
    def users_by_org(cls, value: object) -> object:
        """Parse `nobody` (for all orgs) or `acme=build,ops=deploy` (per org)."""
        if not isinstance(value, str):
            return value
        parts = [part.rpartition("=") for part in value.split(",") if part.strip()]
        return {org.strip(): user.strip() for org, _, user in parts} or None

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def split_hosts(cls, value: object) -> object:
        return [name.strip().lower() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("oidc_roles", mode="before")
    @classmethod
    def roles_of_groups(cls, value: object) -> object:
        return parse_roles(value) if isinstance(value, str) else value

    @field_validator("oidc_issuer")
    @classmethod
    def known_issuer(cls, value: str) -> str:
        return check_issuer(value) if value else value

    @field_validator("oidc_scopes")
    @classmethod
    def with_openid(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("does not have openid, without which a provider sends no ID token")
        return value

    @field_validator("log_level", "log_format", "billing", mode="before")
    @classmethod
    def lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def known_database(cls, value: str, info: ValidationInfo) -> str:
        """Return the URL; by default that of a SQLite file in the data directory."""
        if value and not value.startswith(("sqlite:///", "postgresql://", "postgres://")):
            raise ValueError("is not supported; use sqlite:///path or postgresql://user@host/db")
        data_dir = info.data.get("data_dir")  # missing if it is invalid
        return value or ("" if data_dir is None else f"sqlite:///{data_dir.absolute() / 'rota.db'}")

    @field_validator("reports_url")
    @classmethod
    def known_replica(cls, value: str, info: ValidationInfo) -> str:
        if value and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("is not supported; use postgresql://user@host/db of a replica")
        if value and str(info.data.get("database_url", "")).startswith("sqlite:"):
            raise ValueError("is for a PostgreSQL database: a SQLite file has no replica")
        return value

    @field_validator("pipelines_url")
    @classmethod
    def known_engine(cls, value: str) -> str:
        if not value or value.startswith((*POSTGRES_SCHEMES, "sc://")) or SPARK_HERE.fullmatch(value):
            return value
        if value.startswith("spark://"):
            raise ValueError(
                "is not spark://local or spark://local[N]; for a cluster use Spark Connect, sc://host:15002"
            )
        raise ValueError(
            "is not the URL of an engine for pipelines; use postgresql://user@host/db, spark://local or sc://host:15002"
        )

    @field_validator("trusted_proxies")
    @classmethod
    def known_networks(cls, value: list[str] | None) -> list[str] | None:
        for network in value or ():
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(
                    f"has {network}, which is not an address or network such as 10.0.0.7 or 10.0.0.0/8"
                ) from error
        return value

    @field_validator("service_token")
    @classmethod
    def long_enough(cls, value: str) -> str:
        if value and len(value) < MIN_SERVICE_TOKEN_CHARACTERS:
            raise ValueError(
                f"is shorter than {MIN_SERVICE_TOKEN_CHARACTERS} characters; create one with `openssl rand -hex 32`"
            )
        return value

    @field_validator("dask_address")
    @classmethod
    def known_scheduler(cls, value: str) -> str:
        return check_dask_address(value) if value else value

    @field_validator("ray_address")
    @classmethod
    def known_ray_server(cls, value: str) -> str:
        return check_ray_address(value) if value else value

    @field_validator("smtp_url")
    @classmethod
    def known_mail_server(cls, value: str) -> str:
        if value and (urlsplit(value).scheme not in ("smtp", "smtps") or not urlsplit(value).hostname):
            raise ValueError("is not a URL such as smtps://user:password@mail.example.org")
        return value

    @field_validator("artifacts_url")
    @classmethod
    def known_object_store(cls, value: str) -> str:
        """Return the URL without a slash at its end. It is shown in messages, so it must have no secret."""
        if not value:
            return value
        try:
            url = urlsplit(value)
            secret = "@" in url.netloc or url.query or url.fragment
        except ValueError as error:
            raise ValueError(f"is not a URL: {error}") from None
        if secret:
            raise ValueError("has a user, a query or a fragment; credentials are read from the provider's variables")
        is_complete = url.path.strip("/") and not url.netloc if url.scheme == "file" else url.netloc
        if url.scheme not in ("s3", "gs", "az", "file") or not is_complete:
            raise ValueError("is not supported; use s3://bucket/prefix, gs://…, az://… or file:///directory")
        return value.rstrip("/")

    @field_validator("artifacts_endpoint")
    @classmethod
    def known_server(cls, value: str) -> str:
        url = urlsplit(value)
        if value and (url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or url.query):
            raise ValueError("is not a URL such as https://minio.example.org:9000, without user and query")
        return value.rstrip("/")

    @field_validator("graph_endpoint", "trace_url", "public_url", "heartbeat_url")
    @classmethod
    def known_endpoint(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("is not a URL such as http://graphs:8420")
        return value.rstrip("/")

    @model_validator(mode="after")
    def ordered_limits(self) -> Self:
        if self.wake_min_seconds > self.wake_max_seconds:
            raise ValueError("wake_min_seconds is larger than wake_max_seconds")
        if self.backoff_seconds > self.max_backoff_seconds:
            raise ValueError("backoff_seconds is larger than max_backoff_seconds")
        if self.metrics_port is not None and self.metrics_port + self.processes - 1 > 65535:
            raise ValueError("metrics_port leaves too few ports: each of the processes needs one, from metrics_port on")
        return self

    @model_validator(mode="after")
    def complete_object_store(self) -> Self:
        if not self.artifacts_url and self.max_artifact_mb > MAX_ROW_MB:
            raise ValueError(f"max_artifact_mb is above {MAX_ROW_MB}, which needs artifacts_url, an object store")
        if self.artifacts_endpoint and not self.artifacts_url.startswith("s3://"):
            raise ValueError("artifacts_endpoint is set without an artifacts_url that begins with s3://")
        return self

    @model_validator(mode="after")
    def complete_provider(self) -> Self:
        if not self.oidc_issuer:
            return self
        for name, purpose in (("oidc_client_id", "the client"), ("oidc_roles", "which groups have which role")):
            if not getattr(self, name):
                raise ValueError(f"oidc_issuer is set without {name}, {purpose}")
        if not self.public_url and not is_loopback(self.host):
            raise ValueError("oidc_issuer is set without public_url, to which the provider sends browsers back")
        try:
            check_open(self.oidc_issuer, self.oidc_roles)
        except ValueError as error:
            raise ValueError(f"oidc_roles {error}") from None
        return self

    @classmethod
    def load(cls, **overrides: object) -> "Settings":
        """Read the environment; `overrides` that are not None win. Raises Invalid with all wrong settings."""
        values = {name: value for name in cls.model_fields if (value := os.environ.get(f"ROTA_{name.upper()}"))}
        values |= secrets.read_files()
        try:
            return cls(**values | {name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            details = error.errors()
            raise together(
                [wrong_setting(".".join(map(str, detail["loc"])), detail["input"], detail["msg"]) for detail in details]
            ) from None

    def secrets(self) -> dict[str, str]:
        """Return the secret settings that are set; they are passed to child processes by pipes only."""
        return {name: value for name in secrets.FILE_SETTINGS if (value := getattr(self, name))}

    def guarded_hosts(self, unprotected: bool) -> list[str] | None:
        """Return the accepted names if the server must check the Host header, else None. It must if it is unprotected
        (without keys, or on loopback) or `allowed_hosts` is set."""
        public_host = urlsplit(self.public_url).hostname
        return [*self.allowed_hosts, *filter(None, [public_host])] if self.allowed_hosts or unprotected else None

    def login_settings(self) -> "LoginSettings":
        from rota.access.login_settings import LoginSettings, SessionLimits  # imported here: only servers need them

        limits = SessionLimits(timedelta(hours=self.login_session_hours), timedelta(hours=self.login_idle_hours))
        oidc = OidcSettings(
            self.oidc_issuer,
            self.oidc_client_id,
            self.oidc_roles,
            self.oidc_client_secret,
            self.oidc_groups_claim,
            self.oidc_scopes,
            self.oidc_org,
            self.oidc_name,
        )
        return LoginSettings(oidc if self.oidc_issuer else None, self.password_login, limits)

    def alarm_settings(self) -> AlarmSettings:
        return AlarmSettings(
            timedelta(seconds=self.alarm_seconds),
            self.smtp_url,
            self.smtp_from,
            self.webhook_private,
            self.heartbeat_url,
            timedelta(seconds=self.heartbeat_seconds),
            self.public_url,
            self.data_dir,
        )

    def executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings(self.dask_address, self.ray_address, self.container_command, self.kubernetes_config)

    def object_store_settings(self) -> ObjectStoreSettings | None:
        if not self.artifacts_url:
            return None
        return ObjectStoreSettings(
            self.artifacts_url,
            self.artifacts_endpoint,
            self.artifacts_inline_kb << 10,
            timedelta(days=self.artifacts_keep_days),
        )

    def engine_settings(self) -> EngineSettings:
        return EngineSettings(
            lease=timedelta(seconds=self.lease_seconds),
            misfire_grace=timedelta(seconds=self.misfire_grace_seconds),
            catch_up=CatchUpLimits(self.catch_up_slots, self.catch_up_run_seconds, self.catch_up_credits),
            cancel_grace=timedelta(seconds=self.cancel_grace_seconds),
            concurrency=self.concurrency,
            run_as=self.run_as,
            default_timeout=timedelta(seconds=self.default_timeout_seconds) if self.default_timeout_seconds else None,
            keep_success=timedelta(days=self.keep_success_days),
            keep_failed=timedelta(days=self.keep_failed_days),
            keep_signals=timedelta(days=self.keep_signals_days),
            keep_audit=timedelta(days=self.keep_audit_days),
            max_schedules_per_task=self.max_schedules_per_task,
            capture_locals=self.capture_locals,
            artifact_limit=self.max_artifact_mb << 20,
            objects=self.object_store_settings(),
            billing=self.billing,
            markup=self.markup,
            handler_limit=timedelta(seconds=self.handler_seconds),
            reconcile_limit=timedelta(seconds=self.reconcile_seconds),
            wake_min=timedelta(seconds=self.wake_min_seconds),
            wake_max=timedelta(seconds=self.wake_max_seconds),
            transient_retry=Retry(
                self.max_retries, self.backoff_seconds * 1000, Backoff.EXPONENTIAL, self.max_backoff_seconds * 1000
            ),
        )


def wrong_setting(name: str, value: object, message: str) -> Invalid:
    if name in ("database_url", "reports_url", "pipelines_url"):
        value = str(value).split("://")[0]  # the rest may contain a password
    hidden = name in (
        "service_token",
        "oidc_client_secret",
        "sentry_dsn",
        "smtp_url",
        "heartbeat_url",
        "artifacts_url",
        "artifacts_endpoint",
        "",
    )  # "": all settings together
    value = "…" if hidden else value
    return Invalid(name, value, message.removeprefix("Value error, ").lower())
