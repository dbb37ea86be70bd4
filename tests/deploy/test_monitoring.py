"""The Grafana dashboard and the alert rules use the metrics that Rota exposes, and the rules do what they say."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.app import exposition
from rota.db.replica import ReplicaState
from rota.engine.instruments import INSTRUMENTS
from rota.engine.metrics import Metrics
from tests.deploy.pythons import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
METRIC = re.compile(r"\brota_\w+")
SELECTOR = re.compile(r"\b(rota_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def exposed() -> dict[str, set[str]]:
    """Return the labels of every sample of a real exposition, by the name of the sample."""
    metrics = Metrics()
    for instrument in INSTRUMENTS.values():
        labels = ["x"] * len(instrument.labels)
        if instrument.buckets:
            metrics.observe(instrument, [1.0], *labels)
        else:
            metrics.add(instrument, *labels)
    metrics.polled_at = 0.0
    worker = {"id": "w1", "running": 1, "concurrency": 1, "heartbeat_age": 1.0}
    gauges = {
        "alarms": {"firing": 0},
        "jobs": {"running": 1, "ready": 0},
        "oldest": 0.0,
        "overdue": 0.0,
        "workers": [worker],
        "wanted": {"wanted_workers": 1, "queues": [{"queue": "default", "wanted_workers": 1}]},
    }
    text = exposition.exposition(
        [
            *exposition.counted({"w1": metrics.current()}),
            *exposition.of_process(metrics),
            *exposition.of_database(True, 0.0),
            *exposition.of_installation(gauges),
            *exposition.of_queues(gauges),
            *exposition.of_replica(ReplicaState(None, 0.1, 0)),
        ]
    ).decode()
    samples: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels_text = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()  # type: ignore[union-attr]
            samples[name] = set(re.findall(r'(\w+)="', labels_text or ""))
    return samples


def queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def test_every_metric_and_label_of_dashboard_and_alerts_is_exposed() -> None:
    samples = exposed()
    for query in queries():
        names = SELECTOR.findall(query)
        assert names, query
        known = {label for name, _ in names for label in samples[name]}
        for name, selector in names:
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= samples[name], query
        grouped = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
        assert grouped <= known, query


def test_the_dashboard_shows_every_metric() -> None:
    shown = {re.sub(r"_(bucket|total)$", "", name) for query in queries() for name in METRIC.findall(query)}
    assert shown == {*INSTRUMENTS, *exposition.GAUGES}


def test_counters_are_deduplicated_and_leave_out_ended_workers() -> None:
    for query in queries():
        if "rate(" in query or "increase(" in query:
            assert "max by (" in query, query
            assert query.count('worker!="ended"') == query.count("rate(rota") + query.count("increase(rota"), query


def test_panels_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid: dict[str, Any] = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells


@pytest.mark.parametrize(
    "command",
    [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]],
    ids=["check", "test"],
)
def test_promtool_accepts_the_rules_and_their_tests(command: list[str]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    answer = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_promtool_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    (tmp_path / "rota-api-key").write_text("key")
    command = ["promtool", "check", "config", "prometheus.yaml"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_says_what_to_do() -> None:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert rule["annotations"]["summary"], rule["alert"]
            assert rule["annotations"]["description"], rule["alert"]
