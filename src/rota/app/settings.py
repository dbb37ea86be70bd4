"""Settings of a process. Each one is an environment variable `ROTA_…` and has its line in docs/settings.md."""

import os
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from rota.app import secrets
from rota.core.errors import Invalid, together
from rota.core.policy import Backoff, Billing, Retry
from rota.engine.engine_settings import EngineSettings

MIN_SERVICE_TOKEN_CHARACTERS = 32  # shorter ones can be guessed


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data_dir: Path = Path(".rota")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8420
    database_url: str = ""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 50
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    queues: list[str] | None = None
    orgs: list[str] | None = None
    run_as: dict[str, str] | None = None
    default_timeout_seconds: Annotated[int | None, Field(ge=1, le=31_536_000)] = None
    lease_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    misfire_grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    cancel_grace_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    drain_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    keep_success_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    keep_failed_days: Annotated[int, Field(ge=1, le=36_500)] = 90
    keep_audit_days: Annotated[int, Field(ge=1, le=36_500)] = 400
    max_schedules_per_task: Annotated[int | None, Field(ge=1)] = None
    max_artifact_mb: Annotated[int, Field(ge=1, le=1000)] = 10
    warehouse_dir: Path | None = None
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
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @field_validator("queues", "orgs", "trusted_proxies", mode="before")
    @classmethod
    def split_names(cls, value: object) -> object:
        """Split `a,b` into names; an empty text is None: no restriction."""
        if not isinstance(value, str):
            return value
        return [name.strip() for name in value.split(",") if name.strip()] or None

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

    @field_validator("graph_endpoint", "trace_url", "public_url")
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

    def engine_settings(self) -> EngineSettings:
        return EngineSettings(
            lease=timedelta(seconds=self.lease_seconds),
            misfire_grace=timedelta(seconds=self.misfire_grace_seconds),
            cancel_grace=timedelta(seconds=self.cancel_grace_seconds),
            concurrency=self.concurrency,
            run_as=self.run_as,
            default_timeout=timedelta(seconds=self.default_timeout_seconds) if self.default_timeout_seconds else None,
            keep_success=timedelta(days=self.keep_success_days),
            keep_failed=timedelta(days=self.keep_failed_days),
            keep_audit=timedelta(days=self.keep_audit_days),
            max_schedules_per_task=self.max_schedules_per_task,
            artifact_limit=self.max_artifact_mb << 20,
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
    value = str(value).split("://")[0] if name == "database_url" else value  # the rest may contain a password
    value = "…" if name == "service_token" else value
    return Invalid(name, value, message.removeprefix("Value error, ").lower())
