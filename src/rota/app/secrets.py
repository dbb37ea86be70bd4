"""Secrets of a process: read once, from variables or files, and hidden from other processes of the same user.

Linux shows the environment that a process was started with in `/proc/PID/environ`, also after a variable was unset. So
the values are overwritten in place. A process that is not dumpable shows neither that file nor its memory to
other processes of its user. Root reads everything.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rota.core.errors import Invalid

VARIABLES = (
    *("ROTA_DATABASE_URL", "ROTA_SERVICE_TOKEN", "ROTA_OIDC_CLIENT_SECRET", "ROTA_SENTRY_DSN"),
    *("ROTA_REPORTS_URL", "ROTA_PIPELINES_URL", "ROTA_SMTP_URL", "ROTA_HEARTBEAT_URL", "ROTA_KEY", "ROTA_PASSWORD"),
)
# may be read from the file that ROTA_…_FILE names
FILE_SETTINGS = (
    *("database_url", "service_token", "oidc_client_secret", "sentry_dsn", "smtp_url", "heartbeat_url"),
    *("reports_url", "pipelines_url"),
)
PR_SET_DUMPABLE = 4


def read_files() -> dict[str, str]:
    """Return settings that are read from files or descriptors (`/dev/fd/3`). Raises Invalid."""
    values = {}
    for name in FILE_SETTINGS:
        variable = f"ROTA_{name.upper()}_FILE"
        path = os.environ.get(variable)
        if path and os.environ.get(variable.removesuffix("_FILE")):
            raise Invalid(f"{name}_file", path, f"is set beside {variable.removesuffix('_FILE')}; set one of them")
        if path:
            try:
                values[name] = Path(path).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Invalid(f"{name}_file", path, f"cannot be read: {error}") from error
    return values


def protect() -> None:
    """Remove secrets from the environment of this process; hide its memory and descriptors from other processes."""
    for variable in VARIABLES:
        overwrite(variable)
        os.environ.pop(variable, None)
    close_memory()
    stop_inheritance()


def overwrite(variable: str) -> None:
    """Overwrite the value of a variable in the process's initial environment."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(variable.encode())
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))


def close_memory() -> None:
    """Make the process not dumpable: other processes of its user cannot read its memory or environment. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def stop_inheritance() -> None:
    """Mark all descriptors but the standard streams as not inheritable: subprocesses of the event loop would inherit
    the file of a secret."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if int(name) > 2:
                os.set_inheritable(int(name), False)


@contextlib.contextmanager
def secret_pipes(secrets: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Yield variables and descriptors by which a child process reads these settings from pipes."""
    variables, descriptors = {}, []
    try:
        for name, text in secrets.items():
            read_end, write_end = os.pipe()
            descriptors.append(read_end)
            with os.fdopen(write_end, "w") as pipe:
                pipe.write(text)
            variables[f"ROTA_{name.upper()}_FILE"] = f"/dev/fd/{read_end}"
        yield variables, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
