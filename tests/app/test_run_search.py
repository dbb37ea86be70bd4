"""Search of runs: by tag, input, error, worker, duration and time, in bounded effort, over HTTP and by command."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.core.errors import Invalid
from rota.core.ids import new_id
from rota.core.run_filter import InputField, parse_input_field
from rota.core.states import Status
from rota.db.column_types import json_text
from rota.db.dialect import Tx
from rota.db.paging import write_cursor
from rota.engine import workers
from rota.reports import run_search
from tests.app.harness import NINE, WORKER, Api

OTHER_WORKER = "01WORKER000000000000000001"


async def queue(api: Api, schedule: str, payload: Any) -> None:
    """A job with any input; the task of the harness takes none."""
    job_id = await api.job(schedule)
    await api.execute("UPDATE jobs SET payload = :payload WHERE id = :id", payload=json_text(payload), id=job_id)


async def run(
    api: Api,
    schedule: str,
    payload: Any = None,
    *,
    error: dict[str, Any] | None = None,
    worker: str = WORKER,
    seconds: float = 1,
) -> str:
    """A run that took so long; returns its id."""
    await queue(api, schedule, payload)
    (begun,) = await api.start(worker)
    api.clock.set(api.clock.now() + timedelta(seconds=seconds))
    await api.end([begun], Status.FAILED if error else Status.SUCCESS)
    if error:
        await api.execute("UPDATE runs SET error = :error WHERE id = :id", error=json_text(error), id=begun.run_id)
    await api.execute("UPDATE runs SET worker = :worker WHERE id = :id", worker=worker, id=begun.run_id)
    return begun.run_id


async def found(api: Api, **query: Any) -> list[str]:
    return [item["id"] or item["job_id"] for item in (await api.get("/runs", **query))["items"]]


async def test_each_filter_finds_its_runs_and_no_others(api: Api) -> None:
    def register(tx: Tx) -> None:
        for worker, pid in ((WORKER, 1), (OTHER_WORKER, 2)):
            workers.register(
                tx, worker=worker, pid=pid, version="x", concurrency=1, kinds=["task"], routes=["task"], queues=None,
                lease=timedelta(seconds=30), now=NINE,
            )  # fmt: skip

    await api.db.tx(register)
    await api.execute("UPDATE workers SET host = 'blue' WHERE id = :id", id=OTHER_WORKER)
    await api.schedule("nightly", tags=["money", "eu"])
    await api.schedule("hourly", tags=["eu"])
    plain = await run(api, "nightly", {"customer": 42, "name": 'A "quoted" ü'})
    text = await run(api, "hourly", {"customer": "42", "nested": {"list": [{"id": 7}]}, "paid": True, "note": None})
    slow = await run(api, "hourly", {"customer": 420}, worker=OTHER_WORKER, seconds=600)
    broken = await run(
        api, "nightly", {"customer": 1}, error={"type": "TimeoutError", "message": "no answer from 100%_db"}
    )
    refused = await run(api, "hourly", {"customer": 1}, error={"type": "ValueError", "message": "x", "code": "logic"})
    pending = await api.job("nightly")

    assert await found(api, tag="money") == [pending, broken, plain]
    assert await found(api, tag="eu") == [pending, refused, broken, slow, text, plain]
    assert await found(api, tag="eu", schedule_id="hourly") == [refused, slow, text]
    assert await found(api, tag="other") == []
    assert await found(api, input="customer=42") == [text, plain]
    assert await found(api, **{"input.customer": "42"}) == [text, plain]
    assert await found(api, input=["customer=42", "paid=true"]) == [text]
    assert await found(api, input="nested.list.0.id=7") == [text]
    assert await found(api, input="note=null") == [text]
    assert await found(api, input='name=A "quoted" ü') == [plain]
    assert await found(api, input="name=a") == []
    assert await found(api, error="timeouterror") == [broken]
    assert await found(api, error="100%_DB") == [broken]
    assert await found(api, error="100x") == []
    assert await found(api, error="logic") == []  # its code, not its message
    assert await found(api, error="e", status="failed", schedule_id="hourly") == [refused]
    assert await found(api, worker=OTHER_WORKER) == [slow]
    assert await found(api, worker="blue") == [slow]
    assert await found(api, worker="green") == []
    assert await found(api, longer_than="10m") == [slow]
    assert await found(api, shorter_than="10m") == [refused, broken, text, plain]
    assert await found(api, within="30s") == [pending, refused, broken]
    assert await found(api, since=(NINE + timedelta(seconds=1)).isoformat(), until=NINE + timedelta(seconds=2)) == [
        text
    ]
    assert await found(api, kind="task", status="success") == [slow, text, plain]
    assert await found(api, kind="graph") == []

    begun = await api.start()
    api.clock.set(api.clock.now() + timedelta(hours=2))
    assert await found(api, longer_than="1h") == [begun[0].run_id]  # it still runs
    assert await found(api, worker=WORKER, status="running") == [begun[0].run_id]


@pytest.fixture
def windows_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], None]:
    def set_limits(rows: int, seconds: float) -> None:
        monkeypatch.setattr(run_search, "WINDOW_ROWS", rows)
        monkeypatch.setattr(run_search, "SEARCH_SECONDS", seconds)

    return set_limits


@pytest.mark.parametrize(
    "query", [{"input": "n=3"}, {"error": "odd"}, {"tag": "t"}, {"longer_than": "2s"}, {"kind": "task"}]
)
async def test_a_search_that_runs_out_of_time_goes_on_where_it_stopped(
    api: Api, windows_of: Callable[[int, float], None], query: dict[str, Any]
) -> None:
    """Whatever the size of windows and pages, following the cursors finds each run once, newest first."""
    await api.schedule("nightly", tags=["t"])
    await api.schedule("hourly", tags=["t"])
    for number in range(14):
        error = {"type": "E", "message": "odd"} if number % 2 else None
        schedule = "nightly" if number % 3 else "hourly"
        await run(api, schedule, {"n": number % 4}, error=error, seconds=1 + number % 3)
    for _ in range(3):
        await queue(api, "nightly", {"n": 3})
    windows_of(5000, 60)
    expected = await found(api, **query)
    assert len(expected) > 2
    stopped = 0
    for rows, limit in ((1, 2), (3, 1), (4, 50), (5, 3)):
        windows_of(rows, 0)
        items: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor:
            answer = await api.call(
                "GET", "/runs", params={**query, "limit": limit, **({"cursor": cursor} if cursor else {})}
            )
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert len(page["items"]) <= limit
            items += [item["id"] or item["job_id"] for item in page["items"]]
            cursor, pages = page["next_cursor"], pages + 1
            stopped += "searched-until" in answer.headers
            assert pages < 200
        assert items == expected, (rows, limit)
    assert stopped > 0 or query == {"tag": "t"}  # its windows have at least 100 rows


async def test_secrets_that_are_hidden_cannot_be_searched_for(api: Api) -> None:
    await api.schedule("nightly")
    await run(api, "nightly", {"password": "hunter2", "url": "https://u:hunter2@x"})
    await run(api, "nightly", {}, error={"type": "E", "message": "refused: password=hunter2"})
    assert await found(api, input="password=hunter2") == []
    assert await found(api, input="url=https://u:hunter2@x") == []
    assert await found(api, error="hunter") == []
    assert len(await found(api, error="refused")) == 1


async def test_a_search_sees_the_own_organisation_only(api: Api) -> None:
    await api.schedule("nightly", tags=["t"])
    await run(api, "nightly", {"n": 1}, error={"type": "E", "message": "odd"})
    answer = await api.call("POST", "/orgs", {"name": "Other", "slug": "other"})
    other = {"authorization": f"Bearer {answer.json()['admin_key']}"}
    schedule_id = (await api.get("/schedules/nightly"))["id"]
    for query in (
        {"input": "n=1"}, {"error": "odd"}, {"tag": "t"}, {"worker": WORKER}, {"longer_than": "1s"},
        {"schedule_id": schedule_id, "error": "odd"},
    ):  # fmt: skip
        assert await found(api, **query)
        assert (await api.call("GET", "/runs", params=query, headers=other)).json()["items"] == [], query


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"input": "customer"}, "FIELD=VALUE"),
        ({"input": "=42"}, "FIELD=VALUE"),
        ({"input": ".".join("abcdefghijk") + "=1"}, "at most 10 names"),
        ({"input": [f"a{n}=1" for n in range(11)]}, "at most 10"),
        ({"input": "a=" + "x" * 300}, "200 characters"),
        ({"input.": "1"}, "FIELD=VALUE"),
        ({"inputs.a": "1"}, "unknown query parameter"),
        ({"error": "x" * 201}, "at most 200"),
        ({"error": ""}, "is empty"),
        ({"longer_than": "soon"}, "must be a span"),
        ({"longer_than": "5m", "shorter_than": "5m"}, "not more than longer_than"),
        ({"within": "0s"}, "at least 1 second"),
        ({"since": "2026-05-04T09:00:00Z", "until": "2026-05-03T09:00:00Z"}, "lies before"),
        ({"error": "x", "cursor": "bm8"}, "is not a cursor"),
        ({"error": "x", "cursor": write_cursor("run", write_cursor("soon", "x"))}, "cursor"),
    ],
)
async def test_wrong_filters_are_refused_by_name(api: Api, query: dict[str, Any], message: str) -> None:
    answer = await api.call("GET", "/runs", params=query)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]


def test_input_fields_compare_as_text() -> None:
    assert parse_input_field("input.a.b=c=d") == InputField(("a", "b"), "c=d")
    with pytest.raises(Invalid, match="FIELD=VALUE"):
        parse_input_field("a..b=1")
    payload = {"n": 4.5, "big": 10**20, "list": [1, "x"], "no": False, "obj": {}}
    matching = {"n=4.5", f"big={10**20}", "list.1=x", "no=false"}
    others = {"n=4", "list=1", "list.2=x", "list.-1=x", "list.²=x", "no=0", "obj={}", "no.x=1", new_id() + "=1"}
    assert {text for text in matching | others if parse_input_field(text).matches(payload)} == matching
