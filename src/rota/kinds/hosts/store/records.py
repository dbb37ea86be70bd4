"""Records of the tables of hosts, built by column name."""

from dataclasses import dataclass
from datetime import datetime

from rota.core.model import Job
from rota.db.paging import Record


@dataclass(frozen=True, slots=True)
class HostRow:
    """A row of `hosts`."""

    id: str
    org_id: str
    name: str
    labels: dict[str, str]
    key_hash: str
    key_version: int
    agent_version: str | None
    job_types: dict[str, Record] | None  # `read_only` and `schema` by name; None before its agent registered
    metrics: Record | None
    last_heartbeat_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PairingToken:
    """A row of `pairing_tokens`."""

    id: str
    org_id: str
    hash: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    host_id: str | None


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A row of `server_instances`."""

    id: str
    org_id: str
    host_id: str
    name: str
    type: str
    config: Record
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job of a host that has not ended, with its claim."""

    job: Job
    state: str
    run_id: str | None
    started_at: datetime | None
    parked_reason: str | None
    lease_owner: str | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None

    @property
    def claim_name(self) -> str:
        """The name of the claim on both sides: job and fence."""
        return f"{self.job.id}.{self.job.fence}"
