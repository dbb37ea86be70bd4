"""Secrets of a process: read once, from variables or files, and kept from other processes of the same user.

Linux shows the environment that a process was started with in `/proc/PID/environ`, also after a variable was unset. So
the values are overwritten where they lie. A process that cannot be dumped shows neither that file nor its memory to
other processes of its user. Root reads everything.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rota.core.errors import Invalid

VARIABLES = ("ROTA_DATABASE_URL", "ROTA_SERVICE_TOKEN", "ROTA_KEY", "ROTA_PASSWORD")
IN_FILES = ("database_url", "service_token")  # settings that may come from the file that ROTA_…_FILE names
SET_DUMPABLE = 4  # of prctl


def from_files() -> dict[str, str]:
    """Settings whose value lies in a file, or comes through a descriptor (`/dev/fd/3`). Raises Invalid."""
    found = {}
    for name in IN_FILES:
        variable = f"ROTA_{name.upper()}_FILE"
        path = os.environ.get(variable)
        if path and os.environ.get(variable.removesuffix("_FILE")):
            raise Invalid(f"{name}_file", path, f"is set beside {variable.removesuffix('_FILE')}; set one of them")
        if path:
            try:
                found[name] = Path(path).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Invalid(f"{name}_file", path, f"cannot be read: {error}") from error
    return found


def protect() -> None:
    """Remove secrets from the environment of this process, and close its memory and descriptors to other processes."""
    for variable in VARIABLES:
        overwrite(variable)
        os.environ.pop(variable, None)
    close_memory()
    keep_descriptors()


def overwrite(variable: str) -> None:
    """Overwrite the value of a variable where the system keeps it."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(variable.encode())
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))


def close_memory() -> None:
    """Let no other process of this user read this one's memory or environment. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0)


def keep_descriptors() -> None:
    """Let no process that this one starts inherit a descriptor that it inherited, such as the file of a secret. The
    event loop's subprocesses inherit all that are inheritable."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one that listed them
            if int(name) > 2:
                os.set_inheritable(int(name), False)


@contextlib.contextmanager
def handed_over(secrets: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Variables and descriptors for a child process that reads these settings from pipes."""
    variables, descriptors = {}, []
    try:
        for name, text in secrets.items():
            reading, writing = os.pipe()
            descriptors.append(reading)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(text)
            variables[f"ROTA_{name.upper()}_FILE"] = f"/dev/fd/{reading}"
        yield variables, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
