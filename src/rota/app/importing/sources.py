"""Files of other schedulers, read with bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rota.app.files.documents import FILE_BYTES_MAX, FILES_MAX, TOTAL_BYTES_MAX, FileError


@dataclass(frozen=True, slots=True)
class SourceFile:
    name: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def read_sources(paths: Sequence[Path], suffixes: Sequence[str]) -> list[SourceFile]:
    """Read files, and those below directories that have one of the suffixes. Raises FileError."""
    files: list[Path] = []
    for path in paths:
        below = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
        if path.is_dir() and not below:
            raise FileError(f"{path}: has no file {' or '.join(f'*{suffix}' for suffix in suffixes)}")
        files += below if path.is_dir() else [path]
    if len(files) > FILES_MAX:
        raise FileError(f"{len(files)} files are too many; at most {FILES_MAX} are allowed")
    sources, total = [], 0
    for file in files:
        try:
            size = file.stat().st_size
            total += size
            if size > FILE_BYTES_MAX:
                raise FileError(f"{file}: is larger than {FILE_BYTES_MAX} bytes")
            if total > TOTAL_BYTES_MAX:
                raise FileError(f"{file}: the files are larger than {TOTAL_BYTES_MAX} bytes together")
            sources.append(SourceFile(str(file), file.read_text("utf-8")))
        except OSError as error:
            raise FileError(f"{file}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise FileError(f"{file}: is not UTF-8 at byte {error.start}") from None
    return sources
