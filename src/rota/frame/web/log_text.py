"""Text of a log line as HTML: colours of terminals as classes, matches of a search marked, everything else escaped."""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

STYLES_MAX = 200  # changes of colour in a line; after them it is plain: each costs a tag
SEQUENCE = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"  # colours
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences, such as cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, hyperlinks
    r"|\x1b[ -/]*[0-~]|\x1b"
)
CONTROL = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
BRIGHT = 8
ATTRIBUTES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
RESETS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}
CUBE = (0, 95, 135, 175, 215, 255)
PALETTE = (
    (0, 0, 0), (205, 49, 49), (13, 188, 121), (229, 229, 16), (36, 114, 200), (188, 63, 188), (17, 168, 205),
    (229, 229, 229), (102, 102, 102), (241, 76, 76), (35, 209, 139), (245, 245, 67), (59, 142, 234), (214, 112, 214),
    (41, 184, 219), (255, 255, 255),
)  # fmt: skip

Style = dict[str, int]  # "fg" and "bg": a colour of PALETTE; attributes: 1


def html_of(text: str, search: str = "") -> Markup:
    """Return a line as HTML. Colours become classes `ansi-fg-1`, matches of `search` are in <mark>."""
    shown = "\n".join(map(last_overwrite, text.split("\n")))
    pieces = list(styled(shown))
    plain = "".join(piece for piece, _ in pieces)
    marks = [match.span() for match in re.finditer(re.escape(search), plain, re.IGNORECASE)] if search else []
    parts, position = [], 0
    for piece, style in pieces:
        parts.append(wrapped(marked(piece, position, marks), style))
        position += len(piece)
    return Markup("").join(parts)


def plain_text(text: str) -> str:
    """Return a line without colours and other control sequences."""
    return "".join(piece for piece, _ in styled(text))


def last_overwrite(line: str) -> str:
    """Return what a terminal shows of a line that was overwritten, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def styled(text: str) -> Iterator[tuple[str, Style]]:
    """Yield the pieces of a text with their styles."""
    if "\x1b" not in text:
        yield text.translate(CONTROL), {}
        return
    style: Style = {}
    position = changes = 0
    for match in SEQUENCE.finditer(text):
        if match.start() > position:
            yield text[position : match.start()].translate(CONTROL), dict(style)
        position = match.end()
        if match["sgr"] is not None and changes < STYLES_MAX:
            changes += 1
            style = after(style, match["sgr"])
        elif changes == STYLES_MAX:
            style = {}
    if position < len(text):
        yield text[position:].translate(CONTROL), style


def after(style: Style, parameters: str) -> Style:
    """Return the style after a sequence of colours; unknown parameters change nothing."""
    codes = [int(code[:4] or 0) for code in re.split("[;:]", parameters)]
    style, place = dict(style), 0
    while place < len(codes):
        code = codes[place]
        place += 1
        if code == 0:
            style = {}
        elif code in ATTRIBUTES:
            style[ATTRIBUTES[code]] = 1
        elif code in RESETS:
            for name in RESETS[code]:
                style.pop(name, None)
        elif code in (38, 48):
            colour, used = extended(codes[place:])
            place += used
            if colour is not None:
                style["fg" if code == 38 else "bg"] = colour
        elif code in (39, 49):
            style.pop("fg" if code == 39 else "bg", None)
        elif 30 <= code <= 37 or 40 <= code <= 47:
            style["fg" if code < 40 else "bg"] = code % 10
        elif 90 <= code <= 97 or 100 <= code <= 107:
            style["fg" if code < 100 else "bg"] = code % 10 + BRIGHT
    return style


def extended(codes: list[int]) -> tuple[int | None, int]:
    """Return the nearest colour of PALETTE for `5;N` (256 colours) or `2;R;G;B`, and how many codes it took."""
    if codes[:1] == [5] and len(codes) > 1:
        number = min(codes[1], 255)
        if number < len(PALETTE):
            return number, 2
        if number >= 232:
            return nearest((8 + 10 * (number - 232),) * 3), 2
        number -= 16
        return nearest((CUBE[number // 36], CUBE[number // 6 % 6], CUBE[number % 6])), 2
    if codes[:1] == [2] and len(codes) > 3:
        return nearest((codes[1], codes[2], codes[3])), 4
    return None, len(codes)


def nearest(colour: tuple[int, int, int]) -> int:
    distances = [sum((a - b) ** 2 for a, b in zip(colour, known, strict=True)) for known in PALETTE]
    return distances.index(min(distances))


def wrapped(html: Markup, style: Style) -> Markup:
    classes = [f"ansi-{name}-{value}" if name in ("fg", "bg") else f"ansi-{name}" for name, value in style.items()]
    return Markup(f'<span class="{" ".join(classes)}">{html}</span>') if classes else html


def marked(piece: str, position: int, marks: list[tuple[int, int]]) -> Markup:
    """Return a piece of a line that starts at `position`, with the matches in it marked."""
    parts, done = [], 0
    for start, end in marks:
        start, end = max(start - position, done), min(end - position, len(piece))
        if start < end:
            parts += [escape(piece[done:start]), Markup("<mark>"), escape(piece[start:end]), Markup("</mark>")]
            done = end
    return Markup("").join([*parts, escape(piece[done:])])


FRAME_LINE = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')


def traceback_lines(text: str) -> list[dict[str, object]]:
    """Return the lines of a traceback. `kind` is `frame` for a place, `code` for its source, `failed` for the place
    and source where the error was raised, `error` for the message, `note` for the rest."""
    lines = text.rstrip("\n").split("\n")
    places = [number for number, line in enumerate(lines) if FRAME_LINE.match(line)]
    last = places[-1] if places else -1
    shown: list[dict[str, object]] = []
    for number, line in enumerate(lines):
        inside = line.startswith(("    ", "  | ")) or not line.strip()
        if number in places:
            kind = "failed" if number == last else "frame"
        elif places and number > places[0] and inside:
            kind = "failed" if last >= 0 and number > last and unbroken(lines, last, number) else "code"
        elif line.startswith(("Traceback ", "During handling", "The above exception")) or not line.strip():
            kind = "note"
        else:
            kind = "error"
        shown.append({"kind": kind, "text": line})
    return shown


def unbroken(lines: list[str], start: int, end: int) -> bool:
    """Return whether all lines after `start` up to `end` are source or carets."""
    return all(line.startswith("    ") for line in lines[start + 1 : end + 1])
