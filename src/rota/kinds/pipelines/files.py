"""Files of tables that survive a power cut."""

import os
from pathlib import Path


def fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
