import pytest

from rota.core.log_levels import LogLevel, at_least, level_of


@pytest.mark.parametrize(
    ("stream", "text", "level"),
    [
        ("log", "WARNING shop: slow ERROR", LogLevel.WARNING),
        ("log", "shop ERROR", None),
        ("stdout", "2026-11-19 02:00:00,123 ERROR shop: no", LogLevel.ERROR),
        ("stdout", "[CRITICAL] disk", LogLevel.ERROR),
        ("stderr", "error: no such file", LogLevel.ERROR),
        ("stdout", 'time=1 level=warn msg="x"', LogLevel.WARNING),
        ("stdout", '{"level": "info", "msg": "x"}', LogLevel.INFO),
        ("stdout", "\x1b[31m\x1b[1merror    \x1b[0m it", LogLevel.ERROR),
        ("stdout", "\x1b[33mWARN\x1b[0m it", LogLevel.WARNING),
        ("stdout", "no error here, ERRORS=0", None),
        ("stdout", " " * 200 + "ERROR", None),
        ("stderr", "plain", None),
    ],
)
def test_the_level_is_what_a_logger_wrote(stream: str, text: str, level: LogLevel | None) -> None:
    assert level_of(stream, text) == level


def test_a_level_includes_the_more_severe_ones() -> None:
    assert at_least(LogLevel.WARNING) == [LogLevel.ERROR, LogLevel.WARNING]
