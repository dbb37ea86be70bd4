"""What an agent may run and request: the patterns of `--allow-shell` and `--allow-http`."""

import re
import shlex
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from rota.core.addresses import is_public, read_address
from rota.core.errors import Refused, TransientError

# What `*` stands for. No whitespace, control character or character that a shell, or a script that passes the word on
# to a shell, could read as more than text.
WILDCARD = r"[^\s\x00-\x1f\x7f;&|<>()$`\\\"'*?\[\]{}!#~]"
DEFAULT_PORTS = {"http": 80, "https": 443}


def allowed_command(patterns: Sequence[str], command: str) -> list[str]:
    """Return the words of `command`, to be run without a shell. Raises Refused if no pattern matches all of them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Refused(f"the command {command!r} cannot be split into words: {error}") from error
    if words and any(matches_words(shlex.split(pattern), words) for pattern in patterns):
        return words
    raise Refused(f"this host does not allow the command {command!r}; see `rota agent run --allow-shell`")


def matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether each word matches the pattern's word at the same place. `*` stands for characters without a meaning for
    shells, alone for at least one; it does not make a word an option."""
    return len(pattern) == len(words) and all(map(matches_word, pattern, words))


def matches_word(pattern: str, word: str) -> bool:
    if "*" not in pattern:
        return pattern == word
    if word.startswith("-") and not pattern.startswith("-"):
        return False
    characters = f"{WILDCARD}*".join(map(re.escape, pattern.split("*")))
    return bool(word) and re.fullmatch(characters, word) is not None


def check_command_pattern(pattern: str) -> None:
    """Raises ValueError if `pattern` has no words or an open quote."""
    try:
        words = shlex.split(pattern)
    except ValueError as error:
        raise ValueError(f"--allow-shell {pattern!r} cannot be split into words: {error}") from error
    if not words:
        raise ValueError("--allow-shell needs a command like 'systemctl restart *'")


class UrlPattern:
    """`[scheme://]host[:port][/path]` or a network like `10.0.0.0/8`; `*` in its parts stands for any characters.

    A host name stands for public addresses only, so a name that later resolves to an inner address gains nothing. Inner
    addresses are named by a network, by the address itself, or by `localhost`. With a scheme and no port the pattern
    means the scheme's usual port, without both every port; without a path every path. Raises ValueError if it cannot be
    read.
    """

    def __init__(self, text: str) -> None:
        self.scheme, self.port, self.path = "*", "*", "*"
        self.network = read_network(text)
        self.host = "*"
        if self.network is not None:
            return
        scheme, separator, rest = text.rpartition("://")
        match = re.fullmatch(r"(\[[^\]/@]+\]|[^:/@?#\s\[\]]+)(?::([0-9*]+))?(/.*)?", rest)
        if match is None or (separator and scheme not in DEFAULT_PORTS):
            raise ValueError(f"--allow-http {text!r} is not a URL, host or network like https://*.example.com/health")
        self.scheme = scheme or "*"
        self.host = match[1].strip("[]").lower()
        self.port = match[2] or (str(DEFAULT_PORTS[scheme]) if separator else "*")
        self.path = match[3] or "*"
        self.network = read_network(self.host)

    def names(self, url: SplitResult) -> bool:
        """Whether the pattern stands for `url`, as far as is known before its host is resolved."""
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return (
            matches_text(url.scheme, self.scheme)
            and matches_text(str(port_of(url)), self.port)
            and matches_text(path, self.path)
            and (self.network is not None or matches_text((url.hostname or "").rstrip("."), self.host))
        )

    def allows(self, address: str) -> bool:
        """Whether a request for a URL that the pattern names may go to `address`, one that its host resolved to."""
        if self.network is not None:
            return read_address(address) in self.network
        return read_address(address).is_loopback if self.host == "localhost" else is_public(address)


def allowed_address(patterns: Iterable[str], text: str) -> tuple[SplitResult, str]:
    """Resolve the host of a URL; return the parts of the URL and the address that the request is to use. Raises Refused
    if no pattern allows one of its addresses, TransientError if it cannot be resolved."""
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", port_of(url)
    except ValueError as error:
        raise Refused(f"{text!r} is not a URL: {error}") from error
    if url.scheme not in DEFAULT_PORTS or not host or not text.isprintable() or "@" in url.netloc:
        raise Refused(f"{text!r} is not an http or https URL without a user")
    if {".", ".."} & set(re.split(r"[/\\]", unquote(url.path))):  # the path that is requested would be another one
        raise Refused(f"{text!r} has . or .. in its path")
    candidates = [pattern for pattern in map(UrlPattern, patterns) if pattern.names(url)]
    if candidates:  # else no DNS query: it would reach other machines, and its result describe their network
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise TransientError(f"{text}: {error}") from error
        addresses = [str(entry[4][0]) for entry in resolved]
        for address in addresses:
            if any(pattern.allows(address) for pattern in candidates):
                return url, address
    raise Refused(f"this host does not allow requests to {text!r}; see `rota agent run --allow-http`")


def matches_text(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def port_of(url: SplitResult) -> int:
    return url.port or DEFAULT_PORTS.get(url.scheme, 0)


def read_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
