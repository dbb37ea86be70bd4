"""Pictures of the explanations as SVG, drawn from the code: `python -m docs_site.pictures` writes docs/images/*.svg."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from zoneinfo import ZoneInfo

from rota.core.timing.triggers import Every, Timing, parse_cron, slots_between

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ZONE = ZoneInfo("Europe/Oslo")
WIDTH, LEFT, RIGHT, ROW = 860, 250, 20, 46
INK, PALE, BLUE, RED, PAPER = "#1f2430", "#8a93a6", "#3f51b5", "#c62828", "#ffffff"
STAGES = (  # a slot on its way to a run, and the row that proves each stage
    ("schedule", "says when", "schedules, clocks"),
    ("slot", "one due time", "slots: primary key"),
    ("job", "promise to run once", "jobs"),
    ("lease", "a worker owns it", "jobs: owner, fence"),
    ("run", "one attempt", "runs: ledger"),
    ("verdict", "what became of it", "slots"),
)


def pictures() -> dict[str, str]:
    """Return the text of each picture by the name of its file."""
    gap = datetime(2027, 3, 28, tzinfo=UTC), "02:00 to 03:00 does not exist"
    repeat = datetime(2026, 10, 24, 23, tzinfo=UTC), "02:00 to 03:00 happens twice"
    daily, hourly = Timing(parse_cron("30 2 * * *"), ZONE.key), Timing(parse_cron("30 * * * *"), ZONE.key)
    every = Timing(Every(timedelta(minutes=45), datetime(2026, 1, 1, tzinfo=UTC)), ZONE.key)
    return {
        "clock-gap.svg": change(
            *gap,
            [
                ("30 2 * * *", daily),
                ("30 2 * * *, dst_gap: skip", replace(daily, dst_gap="skip")),
                ("30 * * * *", hourly),
                ("every 45 minutes", every),
            ],
        ),
        "clock-repeat.svg": change(
            *repeat,
            [
                ("30 2 * * *", daily),
                ("30 2 * * *, dst_repeat: both", replace(daily, dst_repeat="both")),
                ("30 * * * *", hourly),
                ("every 45 minutes", every),
            ],
        ),
        "slot-to-run.svg": stages(),
    }


def change(start: datetime, title: str, timings: Sequence[tuple[str, Timing]]) -> str:
    """Draw four hours around a clock change: local times on top, and a row of slots for each timing."""
    end = start + timedelta(hours=4)
    step = (WIDTH - LEFT - RIGHT) / 4

    def x(at: datetime) -> float:
        return LEFT + (at - start) / timedelta(hours=1) * step

    height = 84 + ROW * len(timings)
    parts = [
        text(
            20, 28, f"Europe/Oslo, {(start + timedelta(hours=2)).astimezone(ZONE):%Y-%m-%d}: {title}", 16, weight="600"
        )
    ]
    parts.append(text(20, 60, "local time", 13, PALE))
    before = None
    for hour in range(5):
        at = start + timedelta(hours=hour)
        local = at.astimezone(ZONE)
        changed = before is not None and local.utcoffset() != before
        colour = RED if changed else INK
        parts.append(text(x(at), 60, f"{local:%H:%M}", 13, colour, anchor="middle"))
        parts.append(line(x(at), 68, x(at), height - 12, RED if changed else "#d5d9e2"))
        before = local.utcoffset()
    for number, (label, timing) in enumerate(timings):
        y = 96 + ROW * number
        parts.append(text(20, y + 4, label, 13, mono=True))
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "#d5d9e2"))
        for slot in slots_between(timing, start, end):
            parts.append(f'<circle cx="{x(slot):.1f}" cy="{y}" r="6" fill="{BLUE}"/>')
            parts.append(text(x(slot), y + 22, f"{slot.astimezone(ZONE):%H:%M}", 12, BLUE, anchor="middle"))
    return svg(WIDTH, height, f"{title}: slots of {len(timings)} schedules", parts)


def stages() -> str:
    """Draw the way of a slot from its schedule to its verdict."""
    box, space, top = 120, 18, 20
    parts = []
    for number, (name, meaning, table) in enumerate(STAGES):
        left = 14 + number * (box + space)
        parts.append(f'<rect x="{left}" y="{top}" width="{box}" height="86" rx="8" fill="#eef0fa" stroke="{BLUE}"/>')
        parts.append(text(left + box / 2, top + 28, name, 16, weight="600", anchor="middle"))
        parts.append(text(left + box / 2, top + 50, meaning, 11, anchor="middle"))
        parts.append(text(left + box / 2, top + 72, table, 10.5, PALE, anchor="middle", mono=True))
        if number:
            parts.append(line(left - space, top + 43, left - 5, top + 43, INK))
            parts.append(f'<path d="M{left - 8} {top + 38} l7 5 l-7 5 z" fill="{INK}"/>')
    return svg(WIDTH, 126, "schedule, slot, job, lease, run, verdict", parts)


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    fill: str = INK,
    *,
    weight: str = "400",
    anchor: str = "start",
    mono: bool = False,
) -> str:
    family = "ui-monospace, monospace" if mono else "system-ui, sans-serif"
    style = f'font-family="{family}" font-size="{size:g}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:g}" {style}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:g}" x2="{x2:.1f}" y2="{y2:g}" stroke="{colour}"/>'


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return a picture on its own paper, so that it can be read on light and dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
    paper = f'<rect width="{width:g}" height="{height:g}" rx="10" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *parts, "</svg>", ""])


def write() -> Iterator[Path]:
    for name, content in pictures().items():
        (IMAGES / name).write_text(content)
        yield IMAGES / name


if __name__ == "__main__":
    for path in write():
        print(path)
