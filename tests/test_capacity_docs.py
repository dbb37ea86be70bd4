"""Each figure of the capacity page is in the benchmarks, and its arithmetic is right."""

import math
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "capacity.md").read_text()
SIZING = (DOCS / "sizing.md").read_text()
BENCHMARKS = (DOCS / "benchmarks.md").read_text()
TIMES, OVER = "\N{MULTIPLICATION SIGN}", "\N{DIVISION SIGN}"
SYMBOLS = str.maketrans({TIMES: "*", OVER: "/", ",": ""})
SUMS = re.findall(rf"`([\d,. {TIMES}{OVER}+()]+) = ([\d,.]+)`", PAGE + SIZING)
COMPUTED = {"0.1", "45.0", "34.5"}  # seconds of a job, and sums of measured figures


def words(text: str) -> str:
    """Return text in one line, without markup."""
    return " ".join(text.replace("`", "").replace("|", " ").replace("*", "").split())


def places() -> list[str]:
    """Return the lines of the tables of the benchmarks, and its paragraphs."""
    lines = [line for line in BENCHMARKS.splitlines() if line.startswith("|")]
    return [words(text) for text in [*lines, *BENCHMARKS.split("\n\n")]]


def figures() -> list[list[str]]:
    """Return the measured figures of the page: the name, the value, and the words of its place."""
    table = PAGE.split("## Measured figures")[1].split("From these follow")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[words(cell) for cell in row.strip("|").split("|")] for row in rows]


def test_each_measured_figure_is_still_in_the_benchmarks() -> None:
    assert len(figures()) > 15
    for name, value, place in figures():
        number = re.compile(rf"(?<![\d,.]){re.escape(value)}(?!,?\d|\.\d)")
        assert any(place in text and number.search(text) for text in places()), (name, value, place)


def test_the_figures_of_the_sizing_page_are_those_of_the_capacity_page() -> None:
    text = " ".join(SIZING.split())
    measured = {value for _, value, _ in figures()} | COMPUTED
    assert {"28,283", "10,022", "875", "1.03", "89"} <= measured
    for value in ("28,283", "10,022", "875 bytes", "1.03 times", "89 MiB", "45.0 µs", "34.5 µs"):
        assert value in text


def test_the_arithmetic_is_right() -> None:
    assert len(SUMS) > 20
    for expression, result in SUMS:
        value = eval(expression.translate(SYMBOLS), {"__builtins__": {}})
        assert math.isclose(value, float(result.replace(",", "")), rel_tol=0.01), (expression, value, result)


def test_the_arithmetic_begins_with_measured_figures() -> None:
    """Numbers such as 28,283 in it are those of the table."""
    measured = {value for _, value, _ in figures()} | COMPUTED
    for expression, _ in SUMS:
        for number in re.findall(r"\d[\d,]*\.\d+|(?<![\d,])(?:28,\d{3}|10,022|875)", expression):
            assert number in measured, (expression, number)


def test_the_table_of_the_comparison_is_that_of_the_benchmarks() -> None:
    page = (DOCS / "comparison.md").read_text()
    rows = re.findall(r"^\| ([\w -]+(?: \(Redis\))?) \| ([\d,.]+) \| ([\d.]*) \| [\d.]+ \|$", page, re.MULTILINE)
    assert len(rows) == 10
    measured = BENCHMARKS[BENCHMARKS.index("| W1 drain, PostgreSQL, best settings, 1 process | rota |") :]
    for name, rate, ratio in rows:
        line = next(line for line in measured.splitlines() if re.search(rf"\| {re.escape(name)} \|", line))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert (cells[2], cells[4]) == (rate, ratio), name
