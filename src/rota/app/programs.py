"""Loads the program of a process. Errors in it are reported with the user's own file and line."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from rota.app.application import PACKAGE, Rota
from rota.core.errors import Invalid, RotaError


class ProgramError(RotaError):
    """The program cannot be loaded."""

    code = "program"


def load_program(where: str | None) -> Rota:
    """Load the program at `where`, or an empty one. Raises ProgramError with the frames of the user's own code."""
    if where is None:
        return Rota()
    try:
        return load_app(where)
    except Invalid as error:
        frames = own_frames(error)
        if not frames:  # about `where` itself
            raise
        raise ProgramError(f"{frames[-1].filename}:{frames[-1].lineno}: {error.message}") from error
    except Exception as error:
        lines = [*traceback.format_list(own_frames(error)), *traceback.format_exception_only(error)]
        raise ProgramError(f"{where} cannot be loaded:\n{''.join(lines)}".rstrip()) from error


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error without those of Rota and of Python's import machinery."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((PACKAGE, "<frozen"))]


def load_app(where: str) -> Rota:
    """Load the `Rota` object of a Python file, or at `module:attribute`. Raises Invalid."""
    if where.endswith(".py") or "/" in where:
        programs = [value for value in vars(load_file(where)).values() if isinstance(value, Rota)]
        if len(programs) != 1:
            raise Invalid("APP", where, f"has {len(programs)} Rota objects where one is expected")
        return programs[0]
    name, _, attribute = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    value = getattr(importlib.import_module(name), attribute or "app", None)
    if not isinstance(value, Rota):
        raise Invalid("APP", where, "names no Rota object; write module:attribute")
    return value


def load_file(where: str) -> ModuleType:
    """Import a Python file as a module. Raises Invalid if it is not one."""
    path = Path(where).resolve()
    if not path.is_file():
        raise Invalid("APP", where, "is not a file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"rota_app_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise Invalid("APP", where, "is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
