"""Options, ratios and checks of the benchmark. Nothing here is timed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from bench import __main__ as bench_main
from bench.__main__ import WORKLOADS, arguments, rounds
from bench.check import KEPT, losses, ratios
from bench.dependencies import name_of
from bench.figures import BARE, Figure, Size, ratio, summary, table
from bench.servers import Servers
from bench.systems import NAMES, PEERS, SYSTEMS


def test_workloads_are_chosen_by_number_or_by_name() -> None:
    assert arguments(["--only", "W1,fairness"]).only == ["drain", "fairness"]
    assert set(arguments([]).only) == {work.name for work in WORKLOADS}


def test_peers_databases_and_rounds_are_chosen() -> None:
    options = arguments(["--peers", "huey,dbos", "--database", "sqlite", "--quick"])
    assert (options.peers, options.database, options.rounds) == (["huey", "dbos"], ["sqlite"], 1)
    assert arguments(["--peers", "none"]).peers == []
    assert (arguments([]).peers, arguments([]).rounds) == (NAMES, 3)


@pytest.mark.parametrize("words", [["--only", "w99"], ["--peers", "cron"], ["--database", "oracle"]])
def test_unknown_names_are_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
    assert f"{words[1]}: not one of" in capsys.readouterr().err


def test_a_ratio_above_one_is_in_favour_of_rota_whatever_the_unit() -> None:
    assert ratio([200, 300], [100, 100], "/s") == 2.5
    assert ratio([1, 2], [4, 4], "ms") == 3
    assert ratio([100], [90, 100, 110], "/s") == 1
    assert ratio([], [1], "/s") is ratio([0], [1], "%") is ratio([1], [0], "%") is None


def test_the_table_compares_each_system_and_the_bare_driver_with_rota() -> None:
    figures = [Figure("W1", 100, "/s", baseline=400), Figure("W1", 50, "/s", system="huey")]
    lines = summary([*figures, *figures])
    assert [(line["system"], line["median"], line["ratio"]) for line in lines] == [
        ("rota", 100, None),
        (BARE, 400, 0.25),
        ("huey", 50, 2),
    ]
    assert "| huey " in table(lines)


KEPT_FIGURES = {"ratios": {"drain": 0.5}, "calls": {"claim": 100.0}}


@pytest.mark.parametrize(
    ("drain", "claim", "lost"),
    [(0.5, 100, []), (0.41, 124, []), (0.39, 100, ["drain"]), (0.5, 126, ["claim"]), (0.39, 126, ["drain", "claim"])],
)
def test_a_loss_of_more_than_a_fifth_is_reported(drain: float, claim: float, lost: list[str]) -> None:
    lines = losses(KEPT_FIGURES, {"ratios": {"drain": drain}, "calls": {"claim": claim}})
    assert [line.split(":")[0] for line in lines] == lost


def test_a_kept_figure_that_is_no_longer_measured_is_reported() -> None:
    assert len(losses(KEPT_FIGURES, {"ratios": {}, "calls": {}})) == 2


def test_the_kept_figures_pass_their_own_check_and_slower_figures_fail_it() -> None:
    kept = json.loads(KEPT.read_text())
    assert losses(kept, kept) == []
    slower = {name: value * 0.7 for name, value in kept["ratios"].items()}
    assert len(losses(kept, {**kept, "ratios": slower})) == len(kept["ratios"]) > 0


def test_only_ratios_to_the_bare_driver_are_kept() -> None:
    figures = [Figure("W1", 100, "/s", baseline=400), Figure("W1", 50, "/s", system="huey")]
    assert ratios(summary(figures)) == {"W1": 0.25}


def test_every_system_has_a_program_and_describes_what_it_keeps() -> None:
    programs = {path.stem for path in PEERS.glob("*.*")}
    assert {system.name.replace("-", "_") for system in SYSTEMS} <= programs
    assert all(system.keeps for system in SYSTEMS)


@pytest.mark.parametrize("text", ["pg-boss@>=12 <12.36", "huey", "celery[redis]", "apscheduler<4"])
def test_the_name_of_a_requirement(text: str) -> None:
    assert name_of(text) in {"pg-boss", "huey", "celery", "apscheduler"}


async def test_a_peer_that_cannot_be_installed_is_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("bench.dependencies.MODULES", tmp_path / "npm")
    peer = [system for system in SYSTEMS if system.name == "bullmq"]
    servers = Servers()
    try:
        figures, skipped, _ = await rounds(servers, peer, ["drain"], Size(), 1)
    finally:
        servers.close()
    assert figures == []
    assert list(skipped) == ["bullmq on redis"]
    assert "SKIPPED bullmq on redis: drain: npm is not installed" in capsys.readouterr().out


async def test_a_workload_that_reaches_its_time_limit_keeps_its_figures_and_is_skipped_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    async def endless(kind: object, size: Size) -> AsyncIterator[Figure]:
        try:
            yield Figure("first", 1, "ms")
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    monkeypatch.setattr(bench_main, "WORKLOADS", [bench_main.rota_only("endless", "", endless)])
    monkeypatch.setattr(bench_main, "WORKLOAD_SECONDS", 0.1)
    ours = [system for system in SYSTEMS if system.name == "rota" and system.store == "sqlite"]
    with closing(Servers()) as servers:
        figures, skipped, durations = await rounds(servers, ours, ["endless"], Size(), 2)
    assert [figure.name for figure in figures] == ["first"]
    assert closed == [True]
    assert list(skipped) == ["rota on sqlite: endless, round 1", "rota on sqlite: endless, round 2"]
    assert len(durations["endless"]["rota on sqlite"]) == 1
