"""Simulations over HTTP and on the dashboard."""

from tests.access.test_web_login import browser, log_in
from tests.app.forms import words
from tests.app.harness import Api

NIGHT = {"from": "2026-05-05T00:00:00Z", "to": "2026-05-06T00:00:00Z"}


async def test_a_night_with_an_outage_is_simulated_and_nothing_is_stored(api: Api) -> None:
    await api.schedule("hourly", cron_expression="0 * * * *", misfire="skip")
    outage = {"from": "2026-05-05T01:30:00Z", "to": "2026-05-05T05:30:00Z"}
    answer = await api.call("POST", "/simulate", {**NIGHT, "outages": [outage], "workers": 1, "durations": "max"})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    totals = result["totals"]
    assert (totals["ran"], totals["missed"], totals["seconds"]) == (20, 4, 1200.0)
    missed = next(slot for slot in result["slots"] if slot["verdict"] == "missed")
    assert (missed["slot"], missed["count"]) == ("2026-05-05T02:00:00+00:00", 4)
    assert result["load"][0] == {
        "hour": "2026-05-05T00:00:00+00:00", "queue": "default", "host": None, "runs": 1, "seconds": 60.0
    }  # fmt: skip
    assert (result["unknown_durations"], result["truncated"]) == (["hourly"], False)
    assert (await api.get("/slots"))["items"] == []
    for change in (
        {"to": NIGHT["from"]}, {"to": "2028-01-01T00:00:00Z"}, {"workers": 0}, {"durations": "p1"},
        {"outages": [{"from": NIGHT["to"], "to": NIGHT["from"]}]},
    ):  # fmt: skip
        assert (await api.call("POST", "/simulate", {**NIGHT, **change})).status_code == 422, change


async def test_a_run_that_an_outage_interrupts_is_no_load_during_the_outage(api: Api) -> None:
    await api.schedule("hourly", cron_expression="0 * * * *", misfire="skip", ends_at="2026-05-05T02:00:00Z")
    outage = {"from": "2026-05-05T01:00:20Z", "to": "2026-05-05T04:00:00Z"}
    result = (await api.call("POST", "/simulate", {**NIGHT, "outages": [outage]})).json()
    busy = {row["hour"][11:13]: row["seconds"] for row in result["load"]}
    assert (busy["00"], busy["01"]) == (60.0, 20.0)
    assert not {"02", "03"} & busy.keys()
    assert result["totals"]["seconds"] == sum(busy.values())


async def test_the_page_draws_the_load(api: Api) -> None:
    await api.schedule("hourly", cron_expression="0 * * * *")
    async with browser(api) as web:
        await log_in(api, web)
        assert "Simulate" in words((await web.get("/simulate")).text)
        shown = await web.get("/simulate", params={"from": "2026-05-05T00:00", "to": "2026-05-06T00:00"})
        assert "24 runs" in words(shown.text)
        assert "<svg" in shown.text
        wrong = await web.get("/simulate", params={"from": "2026-05-05T00:00", "to": "2026-05-04T00:00"})
        assert "must lie after" in words(wrong.text)
