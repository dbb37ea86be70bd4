"""State diagrams of ARCHITECTURE.md, generated from the tables of moves: `python -m tests.diagrams` writes them."""

import re
from pathlib import Path

from rota.core.states import MOVES, PHASE_MOVES
from rota.kinds.workflows.rules import EFFECT_MOVES

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
BLOCK = re.compile(r"<!-- diagram: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def diagrams() -> dict[str, str]:
    """Return the mermaid diagram of each table of moves by its name."""
    jobs = [f"{before or '[*]'} --> {after}: {move}" for (before, move), after in MOVES.items()]
    phases = sorted(f"{before.value} --> {after.value}" for before, after in PHASE_MOVES)
    effects = sorted(f"{before.value} --> {after.value}" for before, after in EFFECT_MOVES)
    return {name: mermaid(lines) for name, lines in (("jobs", jobs), ("phases", phases), ("effects", effects))}


def mermaid(lines: list[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```", ""])


def with_diagrams(text: str) -> str:
    """Return the page with its diagrams generated again."""
    generated = diagrams()
    return BLOCK.sub(lambda block: f"<!-- diagram: {block[1]} -->\n{generated[block[1]]}<!-- end -->", text)


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
