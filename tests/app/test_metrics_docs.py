"""Every metric that is exposed has its line in docs/metrics.md, with its type, unit and labels."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rota.app.exposition import GAUGES
from rota.engine.instruments import INSTRUMENTS
from tests.app.harness import Api
from tests.app.test_health import register

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(rota_\w+)` \|(.*)\|$", re.MULTILINE)


def documented() -> dict[str, list[str]]:
    """Return the cells of each metric's row, by the name in the page."""
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in ROW.findall(PAGE.read_text())}


def test_counters_and_histograms_are_documented_with_labels_and_meaning() -> None:
    rows = documented()
    for instrument in INSTRUMENTS.values():
        kind, unit, labels, meaning = rows[instrument.name if instrument.buckets else f"{instrument.name}_total"]
        assert kind == ("histogram" if instrument.buckets else "counter"), instrument.name
        assert unit == (instrument.unit or unit)
        assert unit, instrument.name
        assert re.findall(r"\w+", labels) == ["worker", *instrument.labels], instrument.name
        assert meaning.startswith(instrument.meaning), instrument.name


def test_gauges_are_documented_with_their_meaning() -> None:
    rows = documented()
    for name, meaning in GAUGES.items():
        assert rows[name][2].startswith(meaning), name


def test_the_page_names_no_metric_that_does_not_exist() -> None:
    names = {name if each.buckets else f"{name}_total" for name, each in INSTRUMENTS.items()} | set(GAUGES)
    assert set(documented()) == names


async def test_what_the_server_exposes_has_the_documented_labels(api: Api) -> None:
    await register(api)
    text = (await api.client.get("/metrics")).text
    rows, labels_of = documented(), {name: each.labels for name, each in INSTRUMENTS.items()}
    families = list(text_string_to_metric_families(text))
    of_others = {"rota_scheduler_heartbeat_age_seconds", *(name for name in GAUGES if "replica" in name)}
    assert {family.name for family in families} >= set(GAUGES) - of_others
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = set(re.findall(r"\w+", rows[name][-2])) if name in rows else None
        assert labels is not None, family.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, (sample, labels_of.get(family.name))
