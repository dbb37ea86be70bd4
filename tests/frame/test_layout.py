"""The layout of boxes and arrows: what overlaps nothing, points right and crosses little."""

import random
from itertools import pairwise
from time import perf_counter

from rota.frame.web.layout import layered, ranked

BOX, GAP = 44.0, 14.0


def test_boxes_and_passages_of_a_column_do_not_overlap() -> None:
    rng = random.Random(1)
    columns = [[f"{column}.{row}" for row in range(6)] for column in range(5)]
    keys = [key for column in columns for key in column]
    edges = [(rng.choice(keys), rng.choice(keys)) for _ in range(60)]
    drawn = layered(columns, [edge for edge in edges if edge[0] != edge[1]], BOX, GAP)
    for number, column in enumerate(columns):
        boxes = [(drawn.middles[key], (BOX + GAP) / 2) for key in column]
        through = [(y, 6.0) for route in drawn.routes for place, y in route.passages if place == number]
        for (upper, above), (lower, below) in pairwise(sorted(boxes + through)):
            assert lower - upper >= above + below - 1e-6
    assert drawn.height > 6 * (BOX + GAP)


def test_crossings_are_avoided_and_chains_are_straight() -> None:
    columns = [["a", "b", "c"], ["C", "B", "A"], ["3", "2", "1"]]
    drawn = layered(columns, [("a", "A"), ("b", "B"), ("c", "C"), ("A", "1"), ("B", "2"), ("C", "3")], BOX, GAP)
    for chain in ("aA1", "bB2", "cC3"):
        assert len({round(drawn.middles[key], 3) for key in chain}) == 1


def test_an_arrow_back_and_one_in_a_column_pass_beside_the_boxes() -> None:
    drawn = layered([["a"], ["b", "c"]], [("a", "b"), ("b", "a"), ("b", "c")], BOX, GAP)
    assert [route.back for route in drawn.routes] == [False, True, True]
    assert [[column for column, _ in route.passages] for route in drawn.routes] == [[], [1, 0], [1]]


def test_columns_follow_the_longest_path_and_a_cycle_ends() -> None:
    assert ranked("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("x", "a")]) == [["a"], ["b"], ["c"], ["d"]]
    assert ranked("ab", [("a", "b"), ("b", "a"), ("a", "a")]) == [["a"], ["b"]]
    assert ranked("", []) == []


def test_hundreds_of_boxes_are_laid_out_quickly() -> None:
    rng = random.Random(2)
    columns = [[f"{column}.{row}" for row in range(100)] for column in range(4)]
    edges = [(rng.choice(columns[n % 3]), rng.choice(columns[n % 3 + 1])) for n in range(800)]
    begun = perf_counter()
    layered(columns, edges, BOX, GAP)
    assert perf_counter() - begun < 2
