"""ULIDs: unique, and sorted by the time they were made."""

import random
from concurrent.futures import ThreadPoolExecutor

from rota.core.ids import DIGITS, new_id


def test_ids_ascend_in_the_order_in_which_they_were_made() -> None:
    ids = [new_id() for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert all(len(ulid) == 26 and set(ulid) <= set(DIGITS) for ulid in ids)


def test_ids_of_many_threads_are_all_different() -> None:
    with ThreadPoolExecutor(8) as threads:
        ids = [ulid for batch in threads.map(lambda _: [new_id() for _ in range(500)], range(16)) for ulid in batch]
    assert len(set(ids)) == 8000


def test_ids_do_not_repeat_when_a_program_seeds_its_random_numbers() -> None:
    random.seed(1)
    first = new_id()
    random.seed(1)
    assert new_id()[10:] != first[10:]
