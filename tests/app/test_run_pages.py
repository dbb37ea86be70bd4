"""The page of a run without script, on both databases: its log in pages, previews, neighbours, comparison, retry."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from rota.core.log_levels import LogLevel, at_least, level_of
from rota.core.model import Attempt
from rota.core.states import Status
from rota.reports import run_logs
from rota.reports.run_logs import LogFilter
from tests.access.test_web_login import browser, log_in
from tests.app.forms import done, fill, words
from tests.app.harness import Api

LINES = (
    ("log", "INFO shop: starting"),
    ("log", "WARNING shop: 100% slow_ERROR"),
    ("stdout", "2026-05-04 09:00:00 ERROR it is broken"),
    ("stdout", '{"level": "warn", "msg": "x"}'),
    ("stdout", "\x1b[31m\x1b[1merror    \x1b[0m <b>red</b>"),
    ("stdout", "an error of no level, ERRORS too"),
    ("stderr", "[fatal] stop"),
    ("stderr", "DEBUG\tdetails"),
    ("stderr", "error: no such file"),
    ("system", "note"),
)


@pytest.fixture
async def web(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        await log_in(api, client)
        yield client


async def begin(api: Api, **input: object) -> Attempt:
    body = {"overlap": "allow", **({"input": input} if input else {})}
    assert (await api.call("POST", "/schedules/nightly/$run", body)).status_code == 202
    return (await api.start())[0]


async def write(api: Api, run_id: str, lines: list[tuple[str, str]]) -> None:
    columns = "INSERT INTO logs (run_id, at, stream, text) "
    statement = columns + "SELECT id, queued_at, :stream, :text FROM runs WHERE id = :run"
    for stream, text in lines:
        await api.execute(statement, run=run_id, stream=stream, text=text)


async def test_lines_are_found_by_level_stream_text_and_number(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    run = await begin(api)
    await api.end([run], Status.FAILED, "logic")
    await write(api, run.run_id, [*LINES] * 3)
    everything = list(enumerate([*LINES] * 3, 1))
    for wanted in (
        LogFilter(),
        *(LogFilter(level=level) for level in LogLevel),
        LogFilter(stream="stderr"),
        LogFilter(text="100% SLOW_"),
        LogFilter(level=LogLevel.ERROR, stream="stdout", text="broken"),
    ):
        expected = [
            (number, text)
            for number, (stream, text) in everything
            if (wanted.level is None or level_of(stream, text) in at_least(wanted.level))
            and wanted.stream in (None, stream)
            and (wanted.text is None or wanted.text.lower() in text.lower())
        ]
        assert await api.db.read(run_logs.count, run.run_id, wanted) == len(expected)
        lines = await api.db.read(run_logs.page, run.run_id, 1, 4, wanted)
        assert [(line["number"], line["text"]) for line in lines] == expected[1:5]
        if len(expected) > 2:
            assert await api.db.read(run_logs.place_of, run.run_id, expected[2][0], wanted) == 2
    total, places = await api.db.read(run_logs.search, run.run_id, "BROKEN", LogFilter(level=LogLevel.ERROR))
    log_page = await api.db.read(run_logs.page, run.run_id, 0, 50, LogFilter(level=LogLevel.ERROR))
    assert total == len(places) == 3
    assert all("broken" in log_page[place]["text"] for place in places)
    listed = await api.get(f"/runs/{run.run_id}/logs", level="error", stream="stderr", contains="FATAL")
    assert [line["text"] for line in listed["items"]] == ["[fatal] stop"] * 3

    shown = (await web.get(f"/runs/{run.run_id}/log?level=error&q=red")).text
    assert 'id="L5"' in shown
    assert 'id="L1"' not in shown
    assert '<span class="ansi-bold ansi-fg-1">error    </span> &lt;b&gt;<mark>red</mark>&lt;/b&gt;' in shown.replace(
        "ansi-fg-1 ansi-bold", "ansi-bold ansi-fg-1"
    )
    for wrong in ("level=loud", "stream=x", "line=-1", "from=x"):
        assert (await web.get(f"/runs/{run.run_id}/log?{wrong}")).status_code == 422


async def test_a_long_log_has_pages(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    run = await begin(api)
    await api.end([run])
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) "
    insert = "INSERT INTO logs (run_id, at, stream, text) " + numbers
    select = "SELECT r.id, r.queued_at, 'stdout', 'line ' || CAST(i AS VARCHAR(9)) FROM n, runs r WHERE r.id = :run"
    await api.execute(insert + select, run=run.run_id)
    last = (await web.get(f"/runs/{run.run_id}")).text
    assert ids(last) == list(range(701, 1201))
    earlier = re.search(r'rel="prev" href="([^"#]+)', last)
    assert earlier is not None
    assert ids((await web.get(f"/runs/{run.run_id}{earlier[1]}")).text) == list(range(201, 701))
    around = (await web.get(f"/runs/{run.run_id}?line=300#L300")).text
    assert 300 in ids(around)
    text = (await web.get(f"/runs/{run.run_id}?q=line+119")).text
    assert "11 lines" in words(text)
    assert 119 in ids(text)
    part = (await web.get(f"/runs/{run.run_id}/log/lines?from=1100")).text
    assert ids(part) == list(range(1101, 1201))


def ids(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="L(\d+)"', html)]


async def test_runs_have_neighbours_and_are_compared(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    runs = []
    for name, status in (("Ada", Status.SUCCESS), ("Bob", Status.FAILED), ("Cid", Status.FAILED)):
        runs.append(await begin(api, name=f"{name} password=secret-of-{name}"))
        await api.end(runs[-1:], status, None if status is Status.SUCCESS else "logic")
    first, second, third = (run.run_id for run in runs)
    shown = (await web.get(f"/runs/{second}")).text
    assert f'rel="prev" href="/runs/{first}"' in shown
    assert f'rel="next" href="/runs/{third}"' in shown
    assert f"/runs/compare?a={first}&amp;b={third}" in (await web.get(f"/runs/{third}")).text  # the last success
    compared = await web.get(f"/runs/compare?a={first}&b={third}&logs=on")
    assert "Ada" in compared.text
    assert "Cid" in compared.text
    assert "secret-of" not in compared.text
    assert "The logs are equal" in compared.text
    assert (await web.get("/runs/compare")).status_code == 200
    assert (await web.get(f"/runs/compare?a={first}&b=nothing")).status_code == 422


async def test_a_run_is_retried_with_another_input_and_its_secrets(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    run = await begin(api, name="postgres://ada:hunter2@db/shop")
    await api.end([run], Status.FAILED, "logic")
    path = f"/runs/{run.run_id}/retry"
    page = (await web.get(path)).text
    assert "postgres://ada:***@db/shop" in page
    assert "hunter2" not in page
    refused = await fill(web, path, path, input__name="postgres://ada:***@db/other")
    assert refused.status_code == 422
    assert "stands for a secret" in words(refused.text)
    assert "Retry requested." in await done(web, await fill(web, path, path))
    (again,) = await api.claim()
    assert again.payload == {"name": "postgres://ada:hunter2@db/shop"}


async def test_previews_have_no_rights(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    run = await begin(api)
    await api.end([run])
    files = {
        "HTML": ("text/html", "<script>alert(1)</script><h1>Report</h1>"),
        "CSV": ("text/csv", "shop;orders\nOslo;<b>3</b>\nBergen;4"),
        "SVG": ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
        "BAD": ("application/vnd.apache.parquet", "no parquet"),
        "ZIP": ("application/zip", "PK"),
    }
    insert = (
        "INSERT INTO artifacts (id, org_id, run_id, parent_id, level, label, content_type, content, created_at) "
        "SELECT :id, org_id, id, id, 1, :label, :type, :content, queued_at FROM runs WHERE id = :run"
    )
    for label, (content_type, text) in files.items():
        values = {"label": label, "type": content_type, "content": text.encode(), "run": run.run_id}
        await api.execute(insert, id=f"{label:0<26}", **values)
    shown = (await web.get(f"/runs/{run.run_id}")).text
    assert shown.count('sandbox loading="lazy"') == 3
    assert "alert(1)" not in shown
    answers = {label: await web.get(f"/files/{label:0<26}/preview") for label in files}
    assert [answer.status_code for answer in answers.values()] == [200, 200, 200, 200, 404]
    for label in ("HTML", "CSV", "SVG", "BAD"):
        policy = answers[label].headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none';")
        assert "script-src" not in policy
        assert "frame-ancestors 'self'" in policy
        assert answers[label].headers["x-content-type-options"] == "nosniff"
    assert "<th>orders</th>" in answers["CSV"].text
    assert "&lt;b&gt;3" in answers["CSV"].text
    assert "cannot be read as Parquet" in words(answers["BAD"].text)
    assert "frame-src 'self'" in (await web.get("/")).headers["content-security-policy"]
