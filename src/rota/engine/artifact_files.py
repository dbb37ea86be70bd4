"""Contents of artifacts as files of a run's machine."""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rota.core.errors import LogicError
from rota.engine.artifact_contents import open_content

if TYPE_CHECKING:
    from rota.engine.engine_base import EngineBase


async def write(engine: "EngineBase", org_id: str, artifact_id: str, path: Path) -> int:
    """Write the content of an artifact to `path` in parts, and return its size. The file is complete or unchanged.
    Raises NotFound, ObjectStoreUnavailable, LogicError if it cannot be written."""
    content = await open_content(engine, org_id, artifact_id)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for part in content.parts(patient=True):
                    await asyncio.to_thread(file.write, part)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as error:
        raise LogicError(f"{path} cannot be written: {error.strerror}") from error
    return content.size
