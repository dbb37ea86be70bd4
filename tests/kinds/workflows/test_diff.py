"""Differences between versions of scripts."""

from time import process_time

from rota.kinds.workflows.scripts.diff import script_diff


def test_a_diff_shows_what_changed() -> None:
    assert script_diff("a\nb\nc", "a\nx\nc", "1.0", "2.0").splitlines() == [
        "--- 1.0",
        "+++ 2.0",
        "@@ -1,3 +1,3 @@",
        " a",
        "-b",
        "+x",
        " c",
    ]
    assert script_diff("a\nb", "a\nb", "1.0", "2.0") == ""


def test_files_of_equal_lines_are_shown_as_replaced() -> None:
    old = "\n".join(f"line {number % 150}" for number in range(20_000))
    new = "\n".join(f"line {number * 7 % 150}" for number in range(20_000))
    started = process_time()
    lines = script_diff(old, new, "1.0", "2.0").splitlines()
    assert process_time() - started < 5
    assert lines[2] == "@@ -1,20000 +1,20000 @@"
    assert len(lines) == 3 + 40_000
