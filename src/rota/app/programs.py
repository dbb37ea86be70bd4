"""Loads the program of a process. Errors in it are reported with the user's own file and line."""

import traceback

from rota.app.application import PACKAGE, Rota, load_app
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
