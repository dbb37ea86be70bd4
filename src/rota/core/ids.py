"""Ids of rows (ULIDs) and of traces."""

import os
import random
import threading

from rota.core.clock import system_time_ms

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
IN_BASE_32 = str.maketrans(DIGITS, "0123456789abcdefghijklmnopqrstuv")  # as Python reads it
PAIRS = [first + second for first in DIGITS for second in DIGITS]


class Maker:
    """Makes the ids of one process, each greater than the one before: jobs queued together keep their order."""

    def __init__(self) -> None:
        self.dice = random.Random()  # our own: a task that seeds Python's does not make ids repeat
        self.lock = threading.Lock()
        self.moment = 0
        self.front, self.text = 0, ""  # the last one but for its last pair of digits, as number and text
        self.pair = 0

    def next(self) -> str:
        with self.lock:
            moment = system_time_ms()
            if moment <= self.moment and self.pair < 1023:  # most often, in a crowd
                self.pair += 1
            else:
                last = (self.front << 10 | self.pair) + 1
                fresh = moment << 80 | self.dice.getrandbits(80) if moment > self.moment else last
                self.moment = max(moment, self.moment)
                self.front, self.pair = divmod(max(fresh, last), 1024)
                self.text = "".join([PAIRS[self.front >> shift & 1023] for shift in range(110, -1, -10)])
            return self.text + PAIRS[self.pair]


maker = Maker()
os.register_at_fork(after_in_child=maker.__init__)  # type: ignore[misc]  # a child must not go on where its parent is


def new_id() -> str:
    """A ULID: sorts by the moment it was made. Unique, but no secret: one is made for every job and every run."""
    return maker.next()


def trace_id_of(job_id: str) -> str:
    """The trace of a job that came without one, as OpenTelemetry and Langfuse write it: its id in other digits."""
    return f"{int(job_id.translate(IN_BASE_32), 32):032x}"


def traceparent(trace_id: str) -> str:
    """A trace that goes on, below a span that nobody saw."""
    return f"00-{trace_id}-{trace_id[16:]}-01"
