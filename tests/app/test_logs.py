"""The log of a process, also while it cannot be written."""

import io

from rota.app.logs import LossyStream


class Disk(io.StringIO):
    """A file on a disk that can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_what_cannot_be_written_is_dropped_and_the_gap_is_noted() -> None:
    disk = Disk()
    stream = LossyStream(disk)
    stream.write("one\n")
    disk.full = True
    print("two", file=stream, flush=True)  # two writes: the text and the line's end
    disk.full = False
    stream.write("three\n")
    stream.write("four\n")
    assert disk.getvalue() == "one\n[2 writes to this log failed and were dropped]\nthree\nfour\n"


def test_a_closed_stream_stops_nothing() -> None:
    disk = Disk()
    disk.close()
    stream = LossyStream(disk)
    stream.write("one\n")
    stream.flush()
