from typing import Any

import pytest

from rota.core.frame_locals import FRAMES_MAX, TOTAL_CHARACTERS, VALUE_CHARACTERS, locals_of


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("repr was called")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("an attribute was read")


def fails(amount: str, api_token: str, options: dict[str, Any]) -> int:
    hostile = Hostile()
    long, count = "x" * 100_000, len(options)
    return int(amount) + count + len(long) + (hostile is None)


def test_variables_are_bounded_and_without_secrets() -> None:
    options = {"password": "hunter2", "url": "postgres://ada:secret@db/shop", "rows": list(range(1000))}
    with pytest.raises(ValueError, match="12,50") as raised:
        fails("12,50", "t0ken", options)
    (*_, last) = locals_of(raised.value, "/nowhere")
    assert last["function"] == "fails"
    assert last["variables"]["amount"] == "'12,50'"
    assert last["variables"]["api_token"] == "***"
    assert last["variables"]["hostile"] == "<tests.core.test_frame_locals.Hostile>"
    assert len(last["variables"]["long"]) == VALUE_CHARACTERS + 1
    shown = last["variables"]["options"]
    assert "'password': ***" in shown
    assert "postgres://ada:***@db/shop" in shown
    assert "… 988 more" in shown
    assert "hunter2" not in str(last)
    assert "secret@" not in str(last)


def test_only_the_innermost_frames_after_those_of_rota_are_kept() -> None:
    def deeper(depth: int) -> None:
        many = {f"name {number}": "v" * 250 for number in range(30)}
        if depth == 0:
            raise ValueError(len(many))
        deeper(depth - 1)

    with pytest.raises(ValueError, match="30") as raised:
        deeper(20)
    frames = locals_of(raised.value, "/nowhere")
    assert locals_of(raised.value, __file__) == []
    assert len(frames) == FRAMES_MAX
    assert frames[-1]["variables"]["depth"] == "0"
    assert sum(len(value) for frame in frames for value in frame["variables"].values()) <= TOTAL_CHARACTERS
