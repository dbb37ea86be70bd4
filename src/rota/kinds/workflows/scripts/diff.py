"""What changed between two versions of a script."""

from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff

EQUAL_PAIRS = 200_000  # pairs of equal lines that are compared; their number decides what a diff costs


def script_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """A unified diff. Files of very many equal lines are shown as replaced as a whole."""
    before, after = old.splitlines(), new.splitlines()
    times_before, times_after = Counter(before), Counter(after)
    pairs = sum(count * times_after[line] for line, count in times_before.items())
    if pairs > EQUAL_PAIRS and before != after:
        lines: Sequence[str] = [
            f"--- {old_name}", f"+++ {new_name}", f"@@ -1,{len(before)} +1,{len(after)} @@",
            *(f"-{line}" for line in before), *(f"+{line}" for line in after),
        ]  # fmt: skip
    else:
        lines = list(unified_diff(before, after, old_name, new_name, lineterm="")) if before != after else []
    return "\n".join(lines)
