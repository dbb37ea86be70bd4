"""Ids of rows (ULIDs) and of traces."""

import os
import random
import threading

from rota.core.clock import system_time_ms

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
TO_PYTHON_BASE_32 = str.maketrans(DIGITS, "0123456789abcdefghijklmnopqrstuv")  # digits that `int(text, 32)` reads
PAIRS = [first + second for first in DIGITS for second in DIGITS]


class UlidMaker:
    """Makes the ULIDs of one process, strictly ascending: jobs enqueued together keep their order."""

    def __init__(self) -> None:
        self.random = random.Random()  # not the global one, which a task may seed: ids would repeat
        self.lock = threading.Lock()
        self.milliseconds = 0
        self.prefix, self.prefix_text = 0, ""  # the last id without its last two digits, as number and text
        self.last_pair = 0

    def next(self) -> str:
        """Return the next id."""
        with self.lock:
            now = system_time_ms()
            if now <= self.milliseconds and self.last_pair < 1023:  # fast path within one millisecond
                self.last_pair += 1
            else:
                following = (self.prefix << 10 | self.last_pair) + 1
                fresh = now << 80 | self.random.getrandbits(80) if now > self.milliseconds else following
                self.milliseconds = max(now, self.milliseconds)
                self.prefix, self.last_pair = divmod(max(fresh, following), 1024)
                self.prefix_text = "".join([PAIRS[self.prefix >> shift & 1023] for shift in range(110, -1, -10)])
            return self.prefix_text + PAIRS[self.last_pair]


ulid_maker = UlidMaker()
os.register_at_fork(after_in_child=ulid_maker.__init__)  # type: ignore[misc]  # else child and parent make the same ids


def new_id() -> str:
    """Return a new ULID, which sorts by the time it was made. Unique, but guessable: never use it as a secret."""
    return ulid_maker.next()


def trace_id_of(job_id: str) -> str:
    """Return the OpenTelemetry trace id of a job that was enqueued without one: its ULID in hexadecimal."""
    return f"{int(job_id.translate(TO_PYTHON_BASE_32), 32):032x}"


def traceparent(trace_id: str) -> str:
    """Return a W3C `traceparent` for a trace; its parent span is not recorded anywhere."""
    return f"00-{trace_id}-{trace_id[16:]}-01"
