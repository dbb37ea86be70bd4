"""State diagrams of ARCHITECTURE.md, generated from the tables of moves: `python -m tests.diagrams` writes them."""

import re
from collections.abc import Collection
from pathlib import Path

from rota.core.effects import EFFECT_MOVES
from rota.core.states import MOVES, PHASE_MOVES
from rota.engine.jobs import UNLEASED_STATES

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
BLOCK = re.compile(r"<!-- diagram: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def diagrams() -> dict[str, str]:
    """Return the mermaid diagram of each table of moves by its name."""
    jobs = [f"{before or '[*]'} --> {after}: {move}" for (before, move), after in MOVES.items()]
    jobs += ["running --> [*]: finish", *(f"{state} --> [*]: withdraw" for state in UNLEASED_STATES)]
    phases, effects = with_ends(PHASE_MOVES), with_ends(EFFECT_MOVES)
    return {name: mermaid(lines) for name, lines in (("jobs", jobs), ("phases", phases), ("effects", effects))}


def with_ends(moves: Collection[tuple[str, str]]) -> list[str]:
    """Return the lines of a diagram; it begins in states that no move leads to, and ends in those that none leaves."""
    befores, afters = {before for before, _ in moves}, {after for _, after in moves}
    return [
        *sorted(f"[*] --> {state}" for state in befores - afters),
        *sorted(f"{before} --> {after}" for before, after in moves),
        *sorted(f"{state} --> [*]" for state in afters - befores),
    ]


def mermaid(lines: list[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```", ""])


def with_diagrams(text: str) -> str:
    """Return the page with its diagrams generated again."""
    generated = diagrams()
    return BLOCK.sub(lambda block: f"<!-- diagram: {block[1]} -->\n{generated[block[1]]}<!-- end -->", text)


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
