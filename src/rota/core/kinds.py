"""Traits of the kinds of work. The engine names no kind: what it does differently for one is a trait, which the kind
registers with its runner."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

Record = dict[str, object]
Tx = Any  # an open transaction, whose type belongs to a higher layer

DEFAULT_KIND = "task"  # of requests that name none
UNRESTRICTED = re.compile(r"[^\s*][^*]*")


@dataclass(frozen=True, slots=True)
class KindTraits:
    """How work of a kind is treated; by default like a function that may overlap, be stopped and be repeated."""

    grant_action: str = "run"  # what grants allow, as named in their scopes
    grant_resource: re.Pattern[str] = UNRESTRICTED  # form of the targets in scopes of grants, beside `*`
    serial: bool = False  # jobs of one target run one at a time, also without a schedule
    has_paths: bool = False  # its targets are paths `namespace/layer/name`, by whose parts runs are listed
    parks_on_failure: bool = False  # after its last failed attempt a job waits for a person, and so do those behind it
    declares_schedules: bool = False  # its schedules follow its declaration: they are not enabled or deleted by hand
    orders_hosts: bool = False  # its input is an order to a host: redacted when shown, checked for rights by job type
    skip_reason: str = "overlap"  # of a slot that is skipped because the schedule has a job
    shows_skips: bool = False  # a schedule's last status becomes `skipped` with a skipped slot or a canceled job
    cancel_refusal: str | None = None  # why a run that began is not canceled
    retry_refusal: str | None = None  # why a run that ended is not repeated
    in_servers: bool = False  # servers run its jobs too; they do not count as workers
    run_artifact: Callable[[Tx, Any, bool], Record] | None = None  # content of a run's row as artifact; True: redacted
    run_details: Callable[[Tx, Collection[str]], dict[str, Record]] | None = None  # more fields of runs, by run id
    runs_in_use: Callable[[], Any] | None = None  # condition on `runs`: ended runs that it still reads
    delete_run_rows: Callable[[Tx, Collection[str]], None] | None = None  # deletes its own rows of deleted runs


_traits: dict[str, KindTraits] = {}
_DEFAULTS = KindTraits()


def register(kind: str, traits: KindTraits) -> KindTraits:
    """Make the traits of a kind known to this process; returns them."""
    _traits[kind] = traits
    return traits


def traits_of(kind: str) -> KindTraits:
    """Return the traits of a kind; the defaults if it has registered none."""
    return _traits.get(kind, _DEFAULTS)


def registered() -> dict[str, KindTraits]:
    """Return the traits of all registered kinds, sorted by kind."""
    return dict(sorted(_traits.items()))
