"""The hot statements change states only as MOVES allows."""

import re

import pytest

from rota.core.states import HEADS, Move, State, state_after, states_before
from rota.db.statement import Statement
from rota.engine import flow_statements, statements
from rota.engine.job_states import lease_values

ALL = {
    name: value
    for module in (statements, flow_statements)
    for name, value in vars(module).items()
    if isinstance(value, Statement)
}
MOVES_OF = {"CLAIM": Move.CLAIM, "CLAIM_NEXT": Move.CLAIM, "PROMOTE": Move.PROMOTE, "HAND_ON_PLACES": Move.PLACE}
WRITES_ABOUT_OWNED_JOBS = ("MARK_STARTED", "FINISH", "MOVE", "RECORD_STEPS", "TAKE_PLACES", "SET_ASIDE")


def texts(statement: Statement) -> list[str]:
    return [re.sub(r"\s+", " ", text) for dialect in ("postgresql", "sqlite") for text in statement.text(dialect)]


@pytest.mark.parametrize("name", MOVES_OF)
def test_a_statement_that_sets_a_state_is_a_move(name: str) -> None:
    move = MOVES_OF[name]
    (before,) = states_before(move)
    setting = [text for text in texts(ALL[name]) if "SET state = " in text]
    assert len(setting) == 2  # one per database
    for text in setting:
        assert f"UPDATE jobs SET state = '{state_after(move)}'" in text
        assert f".state = '{before}'" in text


def test_no_other_statement_sets_a_literal_state() -> None:
    assert {name for name in ALL if any("SET state = '" in text for text in texts(ALL[name]))} == set(MOVES_OF)


@pytest.mark.parametrize("name", ["CLAIM", "CLAIM_NEXT"])
def test_a_claim_sets_the_columns_of_a_lease(name: str) -> None:
    for text in texts(ALL[name]):
        if "UPDATE jobs SET" in text:
            assignments = text.split("UPDATE jobs SET ")[1].split(" WHERE ")[0].split(" FROM chosen")[0]
            assert set(re.findall(r"(\w+) = ", assignments)) - {"name"} == set(lease_values(Move.LEASE, "w", 1))


@pytest.mark.parametrize("name", WRITES_ABOUT_OWNED_JOBS)
def test_a_write_about_an_owned_job_checks_its_fence(name: str) -> None:
    for text in texts(ALL[name]):
        if re.search(r"UPDATE jobs|DELETE FROM jobs|INSERT INTO (runs|steps)", text):
            assert "of_fence" in text.split("AS (", 1)[1]
            assert f"jobs.state || '' = '{State.RUNNING}'" in text


def test_a_head_is_promoted_only_where_no_other_is() -> None:
    heads = ", ".join(f"'{state}'" for state in HEADS)
    assert all(f"head.state IN ({heads})" in text for text in texts(statements.PROMOTE))


def test_every_statement_says_what_it_does() -> None:
    assert all(statement.summary.endswith(".") for statement in ALL.values())
