"""Texts about workflows that wait for a person."""

import pytest

from rota.core.effects import EffectStatus
from rota.kinds.workflows.reports import parked_issue
from rota.kinds.workflows.store.records import OpenEffect


@pytest.mark.parametrize(
    ("title", "named"),
    [(None, "mail.send was in flight"), ("answer to Ann", "mail.send (answer to Ann) was in flight")],
)
def test_a_quarantine_names_the_effect_in_flight(title: str | None, named: str) -> None:
    effect = OpenEffect("E1", "mail.send", {}, title, EffectStatus.IN_FLIGHT, 0)
    shown = parked_issue("quarantined", "", effect)
    assert named in shown
    assert "applied, not_applied or skip" in shown


def test_a_quarantine_without_an_effect_asks_for_another_version() -> None:
    assert "deploy a version" in parked_issue("quarantined", "")
