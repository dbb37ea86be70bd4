"""Settings of executors."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

DASK_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What an operator may set; see the settings page for each."""

    dask_address: str = ""
    ray_address: str = ""
    container_command: str = ""
    kubernetes_config: str = ""


def check_dask_address(value: str) -> str:
    """Return the address. Raises ValueError if it is none of a Dask scheduler."""
    if not is_address(value, DASK_SCHEMES):
        raise ValueError("is not the address of a Dask scheduler such as tcp://scheduler:8786 or tls://scheduler:8786")
    return value


def check_ray_address(value: str) -> str:
    """Return the address. Raises ValueError if it is none of a Ray Client server."""
    if not is_address(value, ("ray",)):
        raise ValueError("is not the address of a Ray Client server such as ray://head:10001")
    return value


def is_address(value: str, schemes: Collection[str]) -> bool:
    """Whether a value is a URL of one of these schemes with host and port, and nothing else."""
    parts = urlsplit(value)
    try:
        named = parts.scheme in schemes and bool(parts.hostname) and parts.port is not None
    except ValueError:  # of the port
        return False
    return named and parts.username is None and parts.path in ("", "/") and not parts.query
