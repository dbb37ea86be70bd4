"""`make bench-check`: measures a short fixed set and compares it with the kept figures, to detect a loss of speed.

Ratios to the bare driver cancel out the current speed of the machine; counts of calls do not depend on it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import BARE, Size

KEPT = Path(__file__).parent / "results" / "kept.json"
LIMIT = 0.2  # a larger loss fails
ROUNDS = 3
TRIES = 3  # how often a figure that seems lost is measured again: the machine has slow minutes
SIZE = Size(jobs=5_000, paced=100)
WORKLOADS = ("drain", "pickup")


def ratios(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return Rota's ratio to the bare driver, by figure."""
    return {line["name"]: line["ratio"] for line in lines if line["system"] == BARE and line["ratio"] is not None}


def losses(kept: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every kept figure that was not reached. A ratio should be high, a count low."""
    lost = []
    for name, before in kept["ratios"].items():
        now = measured["ratios"].get(name)
        if now is None:
            lost.append(f"{name}: was not measured; it was {before:.3g} times the bare driver")
        elif now < before * (1 - LIMIT):
            lost.append(f"{name}: {now:.3g} times the bare driver, it was {before:.3g}: {1 - now / before:.0%} lost")
    for name, before in kept["calls"].items():
        now = measured["calls"].get(name)
        if now is None:
            lost.append(f"{name}: its calls were not counted; it took {before:.1f}")
        elif now > before / (1 - LIMIT):
            lost.append(f"{name}: {now:.1f} function calls, it was {before:.1f}: {now / before - 1:.0%} more")
    return lost
