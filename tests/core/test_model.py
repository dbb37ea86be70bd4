"""Ids that sort by age."""

import random
from concurrent.futures import ThreadPoolExecutor

from rota.core.ids import DIGITS, new_id


def test_ids_rise_in_the_order_in_which_they_were_made() -> None:
    made = [new_id() for _ in range(5000)]
    assert made == sorted(set(made))
    assert all(len(one) == 26 and set(one) <= set(DIGITS) for one in made)


def test_ids_of_many_threads_are_all_different() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = [one for part in threads.map(lambda _: [new_id() for _ in range(500)], range(16)) for one in part]
    assert len(set(made)) == 8000


def test_a_program_that_seeds_its_dice_does_not_make_ids_repeat() -> None:
    random.seed(1)
    first = new_id()
    random.seed(1)
    assert new_id()[10:] != first[10:]
