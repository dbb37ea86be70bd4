"""Secrets hidden before a value is stored or shown where others read it. The only redactor of Rota.

A secret is recognised by the name of its field or by its shape. Every pattern runs in linear time: repetitions are
possessive, and a match can begin only where no longer one has been tried. Texts without a word that hints at a secret,
which are nearly all lines of a log, cost a few substring searches.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import overload

HIDDEN = "***"

# Words that make a name secret wherever they stand in it (`db_password_old`), and those that do so at its end
# (`basicAuth`, but not `auth_method`). A name is split at separators and at the capitals of camelCase.
SECRET_WORDS = frozenset({
    "password", "passwords", "passwd", "passphrase", "passphrases", "pwd", "secret", "secrets", "token", "credential",
    "credentials", "apikey",
})  # fmt: skip
LAST_WORDS = SECRET_WORDS | {"pass", "auth", "authorization", "cookie", "cookies"}
SECRET_PAIRS = frozenset(
    (word, "key") for word in ("api", "access", "private", "secret", "signing", "encryption", "ssh")
)
SECRET_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey")  # of a word: `dbpassword`
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]++|[0-9]++")
NAME_LENGTH = 200  # characters of a name that are looked at, from its end

# A text without these, in lower case, has no field with a secret name.
NAME_HINTS = ("pass", "pwd", "secret", "token", "credential", "auth", "cookie", "key")
NAME = re.compile(
    r"""(?<![\w.-]) (?: ([\w.-]++) \\*+ ["']?+ [ \t]*+ [=:] [=>]?+ \s*+  # `name=`, `name: `, `"name": `, `\"name\": `
                      | (--[\w.-]++) [ \t]++ )                           # `--name `""",
    re.VERBOSE,
)
VALUE = re.compile(
    r"""((?:bearer|basic|digest|token|negotiate) [ \t]++)?+
        (?: "(?:[^"\\]|\\.)*+"?+ | '(?:[^'\\]|\\.)*+'?+ | \\++["'][^"'\\]*+ | [^\s'"&,;]++ )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
PLAIN_VALUES = ("true", "false", "null", "none")

# Shapes of secrets, each with texts of which one, in lower case, is part of every match.
SHAPES = (
    (("://",), re.compile(r"(://[^/\s:@]*+:)[^@/\s]++@"), rf"\1{HIDDEN}@"),  # a password in a URL
    (("cookie",), re.compile(r"(?<![\w-])((?:set-)?cookie[ \t]*+:[ \t]*+)[^\r\n]++", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        ("bearer", "basic"),
        re.compile(r"(?<![\w-])((?:bearer|basic)[ \t]++)(?=[^\s\d'\"]*+\d)[^\s'\",;]++", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (
        ("-u", "-user"),
        re.compile(r"(?<!\S)((?:-u|--user|--proxy-user)(?:=|[ \t]++)['\"]?+[^\s:'\"]++:)[^\s'\"]++"),
        rf"\1{HIDDEN}",
    ),
    (("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+"), HIDDEN),  # a JSON web token
    (("rota_",), re.compile(r"\brota_[\w-]{20,}+"), f"rota_{HIDDEN}"),
    (
        ("akia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox"),
        re.compile(r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}+|github_pat_\w{30,}+|xox[abeprs]-[\w-]{10,}+)"),
        HIDDEN,
    ),
)
HINTS = (*NAME_HINTS, *(hint for hints, _, _ in SHAPES for hint in hints))
PEM_BEGIN, PEM_END, PEM_HEADER_LENGTH = "-----BEGIN ", "-----END ", 64


@overload
def redacted(value: str) -> str: ...
@overload
def redacted(value: Mapping[str, object]) -> dict[str, object]: ...
@overload
def redacted(value: object) -> object: ...
def redacted(value: object) -> object:
    """Return the same value with secrets hidden: by the name of their field, or by their own shape."""
    match value:
        case str():
            return redacted_text(value)
        case dict():
            return {name: hidden(name, member) for name, member in value.items()}
        case list() | tuple():
            members: list[object] = [redacted(member) for member in value]
            for position, option in enumerate(value[:-1]):  # ["--password", "x"]
                if isinstance(option, str) and option.startswith("-") and is_secret_name(option):
                    members[position + 1] = hidden(option, value[position + 1])
            return members
        case _:
            return value


def hidden(name: object, value: object) -> object:
    """The value of a field. Under a secret name it is hidden, unless it is empty, a truth value, or a number whose name
    does not end in a secret word (`token_count`)."""
    if value is None or value == "" or isinstance(value, bool) or not isinstance(name, str):
        return redacted(value)
    secret, number_too = secret_name(name[-NAME_LENGTH:])
    return HIDDEN if secret and (number_too or not isinstance(value, int | float)) else redacted(value)


def redacted_text(text: str) -> str:
    """Return the text with secrets hidden that stand behind a name (`password=…`) or have a known shape."""
    lower = text.lower()
    hints = {hint for hint in HINTS if hint in lower}
    if not hints:
        return text
    if PEM_BEGIN in text:
        text = without_private_keys(text)
    for shape_hints, pattern, replacement in SHAPES:
        if not hints.isdisjoint(shape_hints):
            text = pattern.sub(replacement, text)
    return text if hints.isdisjoint(NAME_HINTS) else without_named_values(text)


@lru_cache(4096)
def secret_name(name: str) -> tuple[bool, bool]:
    """Whether a field of this name holds a secret, and whether also a number there would be one."""
    words = [word.lower() for word in NAME_WORD.findall(name)]
    anywhere = any(word in SECRET_WORDS or word.endswith(SECRET_ENDINGS) for word in words)
    pairs = not SECRET_PAIRS.isdisjoint(pairwise(words))
    while words and words[-1].isdecimal():  # `password2`
        words.pop()
    last = words[-1] if words else ""
    at_end = last in LAST_WORDS or last.endswith(SECRET_ENDINGS) or tuple(words[-2:]) in SECRET_PAIRS
    return anywhere or pairs or at_end, at_end


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return secret_name(name[-NAME_LENGTH:])[0]


def hidden_values(value: object) -> set[str]:
    """The texts of at least four characters in fields with secret names."""
    if isinstance(value, Mapping):
        named = {text for name, member in value.items() if is_secret_name(str(name)) for text in texts_of(member)}
        return named.union(*map(hidden_values, value.values()))
    return set[str]().union(*map(hidden_values, value)) if isinstance(value, list) else set()


def has_hidden(value: object) -> bool:
    """Whether a value that was sent contains the mark of a hidden secret."""
    members = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return value == HIDDEN or any(map(has_hidden, members))


# helpers


def without_named_values(text: str) -> str:
    """Hide the values of fields with secret names: `password=x`, `"clientSecret": "x"`, `--token x`."""
    parts: list[str] = []
    position = 0
    for match in NAME.finditer(text):
        secret, number_too = secret_name((match[1] or match[2])[-NAME_LENGTH:])
        if match.start() < position or not secret:
            continue
        value = VALUE.match(text, match.end())
        plain = "" if value is None else value[0]
        if value is None or plain.lower() in PLAIN_VALUES or (plain.isdecimal() and not number_too):
            continue
        quote = plain[0] if plain[0] in "\"'" else ""
        parts += [text[position : match.end()], value[1] or "", quote, HIDDEN, quote]
        position = value.end()
    return "".join([*parts, text[position:]])


def without_private_keys(text: str) -> str:
    """Hide private keys in PEM form, from their first line to their last; to the end where the last line is missing."""
    parts: list[str] = []
    position = 0
    while (start := text.find(PEM_BEGIN, position)) >= 0:
        if "PRIVATE KEY" not in text[start : start + PEM_HEADER_LENGTH]:
            parts.append(text[position : start + len(PEM_BEGIN)])
            position = start + len(PEM_BEGIN)
            continue
        parts += [text[position:start], HIDDEN]
        end = text.find(PEM_END, start)
        line_end = text.find("\n", end) if end >= 0 else -1
        position = line_end if line_end >= 0 else len(text)
    return "".join([*parts, text[position:]])


def texts_of(value: object) -> set[str]:
    if isinstance(value, Mapping | list):
        members = value.values() if isinstance(value, Mapping) else value
        return set[str]().union(*map(texts_of, members))
    return {str(value)} if value is not None and len(str(value)) >= 4 else set()


def public_task(task: dict[str, object]) -> dict[str, object]:
    """Return a task, or its snapshot in a run, for readers without the scope `shell`: values of `env` and
    `stdin` are hidden, and so are the secrets that are recognised in `parameters` and `command`."""
    shown = {**task}
    env = task.get("env")
    if isinstance(env, Mapping):
        shown["env"] = dict.fromkeys(env, HIDDEN)
    if task.get("stdin"):
        shown["stdin"] = HIDDEN
    shown |= {name: redacted(task[name]) for name in ("parameters", "command") if task.get(name) is not None}
    options = task.get("options")
    return {**shown, "options": public_task(options)} if isinstance(options, dict) else shown
