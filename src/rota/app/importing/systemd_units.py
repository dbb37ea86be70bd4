"""Unit files of systemd: settings with their lines, words of a command, spans of time, specifiers. Pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath

from rota.app.files.documents import FileError
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.sources import SourceFile

UNIT_SUFFIXES = (".timer", ".service")
SETTINGS_MAX = 1_000  # of a unit with its drop-ins
SPAN_UNITS = {
    **dict.fromkeys(("usec", "us", "µs"), 1e-6),
    **dict.fromkeys(("msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "sec", "s", ""), 1.0),
    **dict.fromkeys(("minutes", "minute", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), 86_400.0),
    **dict.fromkeys(("weeks", "week", "w"), 604_800.0),
    **dict.fromkeys(("months", "month", "M"), 2_629_800.0),
    **dict.fromkeys(("years", "year", "y"), 31_557_600.0),
}
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a unit and where it is. `section` is without brackets."""

    file: str
    line: int
    text: str
    section: str
    name: str
    value: str


@dataclass(slots=True)
class Unit:
    """A unit with the settings of its file and of its drop-ins, in the order in which systemd applies them."""

    name: str
    settings: list[Setting] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0]

    def values(self, name: str) -> list[Setting]:
        """Return the settings of a name that count: an empty value removes those before it."""
        values: list[Setting] = []
        for setting in self.settings:
            if setting.name == name:
                values = [*values, setting] if setting.value else []
        return values

    def last(self, name: str) -> Setting | None:
        """Return the last setting of a name; None if it is absent or emptied."""
        values = self.values(name)
        return values[-1] if values else None

    def text(self, name: str) -> str:
        setting = self.last(name)
        return "" if setting is None else setting.value

    def is_true(self, name: str) -> bool:
        return self.text(name).lower() in ("1", "yes", "y", "true", "t", "on")


def read_units(sources: Sequence[SourceFile]) -> tuple[dict[str, Unit], list[Setting]]:
    """Return the units by name, and what is not a setting: lines of other files and those that cannot be read. Raises
    FileError for a unit with too many settings."""
    units: dict[str, Unit] = {}
    other: list[Setting] = []
    for source in sorted(sources, key=lambda source: source.name.endswith(".conf")):
        path = PurePath(source.name)
        name = path.parent.name.removesuffix(".d") if path.suffix == ".conf" else path.name
        if PurePath(name).suffix not in UNIT_SUFFIXES:
            other.append(Setting(source.name, 1, path.name, "", "", "is neither a .timer nor a .service file"))
            continue
        unit = units.setdefault(name, Unit(name))
        for setting in settings_of(source):
            (unit.settings if setting.name else other).append(setting)
            if len(unit.settings) > SETTINGS_MAX:
                raise FileError(f"{source.name}: unit {name} has more than {SETTINGS_MAX} settings")
    return units, other


def settings_of(source: SourceFile) -> Iterator[Setting]:
    """Yield the settings of a file; a line that is none has an empty name and the reason as its value."""
    section, lines, number = "", source.lines, 0
    while number < len(lines):
        first, text = number + 1, lines[number].strip()
        number += 1
        if not text or text[0] in "#;":
            continue
        while text.endswith("\\") and number < len(lines):
            following = lines[number].strip()
            number += 1
            if not following.startswith(("#", ";")):
                text = f"{text[:-1].rstrip()} {following}"
        if text.startswith("[") and text.endswith("]"):
            section = text[1:-1]
            continue
        name, equals, value = text.partition("=")
        if not equals or not section:
            yield Setting(source.name, first, text, section, "", "is not NAME=VALUE in a section")
        else:
            yield Setting(source.name, first, text, section, name.strip(), value.strip())


def span_of(text: str) -> timedelta | None:
    """Return a span of time of systemd; None for `infinity`. Raises NotConvertible."""
    if text.strip() == "infinity":
        return None
    position, seconds = 0, 0.0
    for match in re.finditer(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*", text):
        if match.start() != position or match[2] not in SPAN_UNITS:
            break
        position = match.end()
        seconds += float(match[1]) * SPAN_UNITS[match[2]]
    if position != len(text) or not text.strip():
        raise NotConvertible(f"has a span of time {text!r} that cannot be read")
    if seconds > 10 * SPAN_UNITS["y"]:
        raise NotConvertible("is longer than ten years")
    return timedelta(seconds=seconds)


def without_specifiers(text: str, unit: Unit) -> str:
    """Replace the specifiers that follow from the name of a unit. Raises NotConvertible for others."""
    prefix, _, instance = unit.stem.partition("@")
    known = {"%": "%", "n": unit.name, "N": unit.stem, "p": prefix, "i": instance, "I": instance.replace("-", "/")}

    def replaced(match: re.Match[str]) -> str:
        value = known.get(match[1])
        if value is None or (match[1] in "iI" and not value):
            raise NotConvertible(f"has the specifier %{match[1]}, whose value is known only to systemd on that machine")
        return value

    return re.sub(r"%(.?)", replaced, text)


def words_of(text: str) -> list[str]:
    """Split a value into words as systemd does: quotes and C escapes. Raises NotConvertible."""
    words: list[str] = []
    word, quote, position = None, "", 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            escaped, position = escape_at(text, position)
            word = (word or "") + escaped
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "\"'" and word is None:
            quote, word = character, ""
        elif character in "\"'":
            quote = character
        elif character.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + character
    if quote:
        raise NotConvertible("has a quote that is not closed")
    return words if word is None else [*words, word]


def escape_at(text: str, position: int) -> tuple[str, int]:
    """Return what the escape whose letter is at a position stands for, and the position after it."""
    letter = text[position]
    if letter in ESCAPES:
        return ESCAPES[letter], position + 1
    for prefix, base, digits in (("x", 16, 2), ("u", 16, 4), ("U", 16, 8), ("", 8, 3)):
        code = text[position + len(prefix) : position + len(prefix) + digits]
        if text.startswith(prefix, position) and re.fullmatch(r"[0-9a-fA-F]+" if base == 16 else "[0-7]{3}", code):
            return chr(min(int(code, base), 0x10FFFF)), position + len(prefix) + digits
    return letter, position + 1


def shell_word(word: str) -> str:
    """Return a word of a command for a shell, with the variables that systemd would replace."""
    if re.fullmatch(r"\$[A-Za-z_]\w*", word):
        return word  # systemd splits its value at blanks, as a shell does
    parts, position, has_variable = [], 0, False
    for match in VARIABLE.finditer(word):
        parts.append(word[position : match.start()])
        if match[1]:
            has_variable = True
            parts.append(f"${{{match[1]}}}")
        else:
            parts.append("$")
        position = match.end()
    parts.append(word[position:])
    if not has_variable:
        return shlex.quote("".join(parts))
    texts = [part if VARIABLE.fullmatch(part) else re.sub(r'([\\"`$])', r"\\\1", part) for part in parts]
    return f'"{"".join(texts)}"'
