"""Whether Rota lost speed: `make bench-check` measures a short fixed set and compares it with the kept figures.

Ratios to the bare driver stand for what the machine allows at the moment; the counts of calls do not depend on it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import BARE, Size

KEPT = Path(__file__).parent / "results" / "kept.json"
LIMIT = 0.2  # a loss beyond this part fails
ROUNDS = 3
TRIES = 3  # what seems lost is measured again, so often: the machine has slow minutes
SIZE = Size(jobs=5_000, paced=100)
WORKS = ("drain", "pickup")


def ratios(lines: list[dict[str, Any]]) -> dict[str, float]:
    """How good Rota is beside the bare driver, figure by figure."""
    return {line["name"]: line["ratio"] for line in lines if line["system"] == BARE and line["ratio"] is not None}


def losses(kept: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """In plain words, every kept figure that was not reached. A ratio should be high, a count low."""
    told = []
    for name, before in kept["ratios"].items():
        now = found["ratios"].get(name)
        if now is None:
            told.append(f"{name}: was not measured; it was {before:.3g} times the bare driver")
        elif now < before * (1 - LIMIT):
            told.append(
                f"{name}: {now:.3g} times the bare driver, it was {before:.3g}: {1 - now / before:.0%} were lost"
            )
    for name, before in kept["calls"].items():
        now = found["calls"].get(name)
        if now is None:
            told.append(f"{name}: its calls were not counted; it took {before:.1f}")
        elif now > before / (1 - LIMIT):
            told.append(f"{name}: {now:.1f} function calls, it was {before:.1f}: {now / before - 1:.0%} more")
    return told
