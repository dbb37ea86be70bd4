"""Settings of alarms."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AlarmSettings:
    """What an operator may set; see the settings page for each."""

    period: timedelta = timedelta(seconds=30)
    smtp_url: str = ""
    smtp_from: str = ""
    webhook_private: bool = False
    heartbeat_url: str = ""
    heartbeat_period: timedelta = timedelta(seconds=300)
    public_url: str = ""
    data_dir: Path = Path(".rota")

    @property
    def link(self) -> str | None:
        """The page of the alarms, for messages."""
        return f"{self.public_url}/alarms" if self.public_url else None
