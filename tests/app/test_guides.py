"""Executes the tutorial and the how-to guides literally: their files, commands and outputs, in a clean directory.

Blocks of a page, in their order:

- with the name of a file as title: the file is written, or with `NAME, at the end` extended;
- `sh`: the commands run in bash and must succeed;
- `sh title="first terminal"` and other terminals: a process that goes on; Ctrl-C ends the previous one of the terminal;
- `sh title="after some seconds"`: repeated until the output is as expected;
- `text title="first terminal"`: what the process of this terminal has printed, after a while;
- `text`: the output of the block before it. `…` stands for any text, alone on a line for any lines.

The ports 8420 and 9009 of a page are replaced by free ones.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.app.test_examples import free_port

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
SHORT = {"nightly-backup", "pipeline-chain"}  # pages of `make test`; the others are in `make test-long`
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LATER = "after some seconds"
AT_THE_END = ", at the end"
START_SECONDS = 120  # until a process is ready or an output as expected, on a busy machine


@dataclass
class Terminals:
    """The processes that the page started, each by its terminal."""

    place: Path
    env: dict[str, str]
    ports: dict[str, str]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, terminal: str, command: str, expected: str | None) -> None:
        """Run `command` in `terminal` and wait until it is ready: a worker has started, or the output is there."""
        self.end(terminal)
        log = log_of(self.place, terminal)
        with log.open("wb") as output:
            self.processes[terminal] = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.place,
                env=self.env,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

        def ready() -> bool:
            text = log.read_text()
            assert self.processes[terminal].poll() is None, text
            return ("rota up" not in command or "worker started" in text) and matches(text, expected)

        wait_until(ready, log.read_text)

    def expect(self, terminal: str, expected: str) -> None:
        """Wait until the process in `terminal` has printed what is expected."""
        log = log_of(self.place, terminal)
        wait_until(lambda: matches(log.read_text(), expected), log.read_text)

    def run(self, commands: str, expected: str | None, seconds: float) -> None:
        """Run commands; repeat them for so long until they succeed and print what is expected."""
        end = time.monotonic() + seconds
        while True:
            done = subprocess.run(
                ["bash", "-e", "-c", commands],
                cwd=self.place,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode == 0 and matches(done.stdout, expected):
                return
            assert time.monotonic() < end, f"{commands}\nprinted (exit code {done.returncode})\n{done.stdout}"
            time.sleep(0.3)

    def end(self, terminal: str) -> None:
        process = self.processes.pop(terminal, None)
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        for terminal in list(self.processes):
            self.end(terminal)


def log_of(place: Path, terminal: str) -> Path:
    return place / f".{terminal.replace(' ', '-')}.log"


def wait_until(condition: Callable[[], bool], shown: Callable[[], str]) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end, shown()
        time.sleep(0.3)


def matches(output: str, expected: str | None) -> bool:
    """Return whether `output` is as expected; differences in blanks and blank lines do not count."""
    if expected is None:
        return True
    lines = [" ".join(line.split()) for line in expected.splitlines() if line.strip()]
    pattern = "".join(
        "(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n" for line in lines
    )
    seen = "".join(" ".join(line.split()) + "\n" for line in output.splitlines() if line.strip())
    return re.fullmatch(pattern, seen) is not None


def blocks(page: Path, ports: dict[str, str]) -> Iterator[tuple[str, str | None, str, str | None]]:
    """Yield language, title, text and the expected output of each block."""
    markdown = page.read_text()
    for documented, used in ports.items():
        markdown = markdown.replace(documented, used)
    parts = BLOCK.findall(markdown)
    assert len(parts) * 2 == len(re.findall("^```", markdown, re.MULTILINE)), f"{page.name}: a block does not end"
    for number, (language, title, text) in enumerate(parts):
        if (language, title) == ("text", ""):
            assert [part[0] for part in parts[:number]][-1:] == ["sh"], f"{page.name}: output without commands:\n{text}"
            continue
        following = parts[number + 1] if number + 1 < len(parts) else ("", "", "")
        yield language, title or None, text, following[2] if following[:2] == ("text", "") else None


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    ports = {documented: str(free_port()) for documented in ("8420", "9009")}
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "ROTA_PORT": ports["8420"],
    }
    opened = Terminals(tmp_path, env, ports)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[] if page.stem in SHORT else [pytest.mark.long]) for page in PAGES],
)
def test_the_page_can_be_followed_literally(page: Path, terminals: Terminals) -> None:
    for language, title, text, expected in blocks(page, terminals.ports):
        in_terminal = title is not None and title.endswith(" terminal")
        is_file = title is not None and "." in title
        if in_terminal and language == "text":
            terminals.expect(str(title), text)
        elif in_terminal:
            terminals.start(str(title), text, expected)
        elif is_file:
            mode = "a" if str(title).endswith(AT_THE_END) else "w"
            with (terminals.place / str(title).removesuffix(AT_THE_END)).open(mode) as file:
                file.write(f"\n\n{text}" if mode == "a" else text)
        else:
            assert language == "sh", f"{page.name}: a block without the name of a file:\n{text}"
            assert title in (None, LATER), f"{page.name}: unknown title {title}"
            terminals.run(text, expected, START_SECONDS if title == LATER else 0)
