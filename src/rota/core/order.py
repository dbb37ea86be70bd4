"""What goes before a job: other jobs, or the jobs of other schedules for the same slot."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

AFTER_SCHEDULES_MAX = 20
AFTER_LEVELS_MAX = 100  # of schedules after schedules after schedules


class When(StrEnum):
    """How the jobs before it must have ended, all of them, so that a dependent job runs."""

    SUCCESS = "success"  # each succeeded
    FAILURE = "failure"  # at least one did not succeed
    ANY = "any"


@dataclass(frozen=True, slots=True)
class After:
    """The schedules, by name, whose jobs of the same slot must have ended before the job of a slot starts."""

    schedules: tuple[str, ...]
    when: When = When.SUCCESS


def in_order(before: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names so that each comes behind those before it, as far as they are among them and without a cycle."""
    followers: dict[str, list[str]] = {}
    waits = dict[str, int]()
    for name, names in before.items():
        among = set(names) & before.keys()
        waits[name] = len(among)
        for other in among:
            followers.setdefault(other, []).append(name)
    ordered = [name for name, count in waits.items() if count == 0]
    for name in ordered:  # it grows
        for follower in followers.get(name, ()):
            waits[follower] -= 1
            if waits[follower] == 0:
                ordered.append(follower)
    return ordered + [name for name, count in waits.items() if count > 0]
