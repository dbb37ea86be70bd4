"""Requests that need much computation: they are bounded, and none computes on the event loop."""

import threading
from typing import Any

import pytest

from rota.core.timing import dst, grid
from tests.access.test_web_login import browser, log_in
from tests.app.harness import Api

DRIFTING = {  # a second later each day: for decades no slot is inside the window
    "target": "hello", "interval_seconds": 86401, "anchor": "2026-05-04T13:00:00Z", "timezone": "Europe/Berlin",
}  # fmt: skip
FAR = {**DRIFTING, "window_start": "17:00", "window_end": "17:01"}  # in about 2050
NEVER = {**DRIFTING, "window_start": "03:00", "window_end": "03:01"}


@pytest.fixture
def searched_in(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that searched for slots."""
    names: set[str] = set()

    def noted(search: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            names.add(threading.current_thread().name.rpartition("_")[0])
            return search(*args)

        return wrapper

    monkeypatch.setattr(grid, "periods", noted(dst.periods))
    monkeypatch.setattr(grid, "periods_back", noted(dst.periods_back))
    return names


async def test_a_bulk_of_sparse_schedules_is_refused_and_computed_in_a_thread(api: Api, searched_in: set[str]) -> None:
    answer = await api.call("POST", "/schedules/$bulk", {"items": [NEVER] * 1000})
    body = answer.json()
    assert (answer.status_code, body["code"], body["errors_total"]) == (422, "invalid", 1)
    assert "too many or too far apart" in body["detail"]
    assert searched_in == {"rota-compute"}
    assert await api.count("schedules") == 0


async def test_a_bulk_of_some_sparse_schedules_is_stored(api: Api, searched_in: set[str]) -> None:
    answer = await api.call("POST", "/schedules/$bulk", {"items": [{**FAR, "name": f"far {n}"} for n in range(60)]})
    assert answer.status_code == 201, answer.text
    assert {item["next_slot"][:4] for item in answer.json()["items"]} <= {str(year) for year in range(2045, 2060)}
    assert searched_in == {"rota-compute"}
    async with browser(api) as client:
        await log_in(api, client)
        page = await client.get("/timeline")
        assert page.status_code == 200
        form = {**{name: str(value) for name, value in FAR.items()}, "schedule_type": "interval"}
        assert (await client.get("/schedules/new", params=form)).status_code == 200
    assert (await api.get("/schedules/far 7/$next", count=100))["slots"]
    assert searched_in == {"rota-compute"}


async def test_previews_are_computed_in_a_thread(api: Api, searched_in: set[str]) -> None:
    timing = {name: value for name, value in FAR.items() if name != "target"}
    answer = await api.call("POST", "/schedules/$preview", {**timing, "count": 100})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["slots"]) == 60
    assert searched_in == {"rota-compute"}


async def test_a_backfill_of_a_century_is_bounded(api: Api) -> None:
    await api.schedule("seconds", cron_expression=None, schedule_type="interval", interval_seconds=1)
    body = {"from": "1900-01-01T00:00:00Z", "to": "2026-05-04T08:00:00Z", "dry_run": True}
    answer = await api.call("POST", "/schedules/seconds/$backfill", body)
    assert (answer.status_code, answer.json()["count"]) == (200, 100)
    await api.schedule("sparse", cron_expression=None, schedule_type=None, **{k: FAR[k] for k in FAR if k != "target"})
    answer = await api.call("POST", "/schedules/sparse/$backfill", body)
    assert answer.status_code == 200, answer.text


async def test_an_answer_names_the_first_twenty_errors_and_their_number(api: Api) -> None:
    items = [{"target": "hello", "cron_expression": "x" * 100} for _ in range(500)]
    answer = await api.call("POST", "/schedules/$bulk", {"items": items})
    body = answer.json()
    assert (answer.status_code, len(body["errors"]), body["errors_total"]) == (422, 20, 500)
    assert len(answer.content) < 10_000
    answer = await api.call("POST", "/schedules", {f"field {n}": 1 for n in range(300)})
    assert (len(answer.json()["errors"]), answer.json()["errors_total"] >= 300) == (20, True)


@pytest.mark.parametrize("path", ["/schedules?name=", "/schedules?tag=", "/runs?target="])
async def test_a_filter_longer_than_anything_it_could_match_is_refused(api: Api, path: str) -> None:
    answer = await api.call("GET", path + "a" * 51_000)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "longer than 1000 characters" in answer.json()["detail"]


async def test_a_filter_of_a_page_that_is_too_long_is_the_readers_mistake(api: Api) -> None:
    async with browser(api) as client:
        await log_in(api, client)
        for path in ("/schedules?name=", "/runs?target=", "/timeline?name="):
            assert (await client.get(path + "a" * 51_000)).status_code == 422, path
