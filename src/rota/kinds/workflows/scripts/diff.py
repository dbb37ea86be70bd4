"""The diff of two versions of a script."""

from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff

DIFF_PAIRS_LIMIT = 200_000  # pairs of equal lines; the cost of difflib grows with their number


def script_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Return a unified diff; above DIFF_PAIRS_LIMIT, one that replaces the whole file."""
    before, after = old.splitlines(), new.splitlines()
    counts_before, counts_after = Counter(before), Counter(after)
    pairs = sum(count * counts_after[line] for line, count in counts_before.items())
    if pairs > DIFF_PAIRS_LIMIT and before != after:
        lines: Sequence[str] = [
            f"--- {old_name}",
            f"+++ {new_name}",
            f"@@ -1,{len(before)} +1,{len(after)} @@",
            *(f"-{line}" for line in before),
            *(f"+{line}" for line in after),
        ]
    else:
        lines = list(unified_diff(before, after, old_name, new_name, lineterm="")) if before != after else []
    return "\n".join(lines)
