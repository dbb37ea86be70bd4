import pytest

from rota.frame.web.log_text import html_of, plain_text, traceback_lines


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a <b> & c", "a &lt;b&gt; &amp; c"),
        ("\x1b[31mred\x1b[0m plain", '<span class="ansi-fg-1">red</span> plain'),
        ("\x1b[1;92;44mx", '<span class="ansi-bold ansi-fg-10 ansi-bg-4">x</span>'),
        ("\x1b[38;5;196mx\x1b[39my", '<span class="ansi-fg-1">x</span>y'),
        ("\x1b[38;2;255;255;255mx", '<span class="ansi-fg-15">x</span>'),
        ("\x1b[2J\x1b[10;1Hx\x1b]0;title\x07y\x1b]8;;javascript:alert(1)\x1b\\z\x1b]8;;\x1b\\", "xyz"),
        ("10 %\r50 %\r100 %\r", "100 %"),
        ("bell\x07 and nul-like\x01", "bell\u2407 and nul-like\u2401"),
        ('\x1b[31"onclick=x m', "nclick=x m"),
        ("\x1b[999999999999999999m\x1b[38;5mx", "x"),
    ],
)
def test_colours_become_classes_and_all_else_is_text(text: str, html: str) -> None:
    assert html_of(text) == html


def test_matches_are_marked_across_colours() -> None:
    html = html_of("<i>\x1b[31mERR\x1b[0mor <i>", "error")
    assert html == '&lt;i&gt;<span class="ansi-fg-1"><mark>ERR</mark></span><mark>or</mark> &lt;i&gt;'
    assert html_of("a.c abc", "a.c") == "<mark>a.c</mark> abc"


def test_a_line_of_escapes_stays_small() -> None:
    assert len(html_of("\x1b[1m.\x1b[0m." * 2000)) < 20_000
    assert plain_text("\x1b[1m.\x1b[0m." * 2000) == "." * 4000


def test_the_line_that_failed_is_marked() -> None:
    text = """Traceback (most recent call last):
  File "a.py", line 3, in outer
    inner()
  File "a.py", line 9, in inner
    return int("x")
           ^^^^^^^^
ValueError: invalid <x>
"""
    kinds = [line["kind"] for line in traceback_lines(text)]
    assert kinds == ["note", "frame", "code", "failed", "failed", "failed", "error"]
