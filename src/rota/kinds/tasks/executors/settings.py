"""Settings of executors."""

from dataclasses import dataclass
from urllib.parse import urlsplit

DASK_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What an operator may set; see the settings page for each."""

    dask_address: str = ""


def check_dask_address(value: str) -> str:
    """Return the address. Raises ValueError if it is none of a Dask scheduler."""
    parts = urlsplit(value)
    try:
        right = parts.scheme in DASK_SCHEMES and bool(parts.hostname) and parts.port is not None
    except ValueError:  # of the port
        right = False
    if not right or parts.username is not None:
        raise ValueError("is not the address of a Dask scheduler such as tcp://scheduler:8786 or tls://scheduler:8786")
    return value
