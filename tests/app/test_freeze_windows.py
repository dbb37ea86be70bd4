"""Freeze windows over HTTP and on the dashboard."""

from tests.access.test_web_login import browser, log_in
from tests.app.forms import done, fill, words
from tests.app.harness import Api

WINDOW = {
    "name": "stop",
    "starts_at": "2026-05-05T00:00:00Z",
    "ends_at": "2026-05-07T00:00:00Z",
    "reason": "release",
    "tag": "night",
}


async def test_a_window_is_shown_wherever_slots_are(api: Api) -> None:
    await api.schedule("nightly", tags=["night"], cron_expression="0 2 * * *")
    made = await api.call("POST", "/freeze-windows", WINDOW)
    assert made.status_code == 201, made.text
    window = made.json()
    assert made.headers["location"] == f"/api/v1/freeze-windows/{window['id']}"
    assert (window["state"], window["schedules"], window["mode"]) == ("upcoming", ["nightly"], "skip")
    coming = await api.get("/schedules/nightly/$next", count=3)
    assert [slot["note"] for slot in coming["slots"]] == [
        "skipped by freeze stop: release", "skipped by freeze stop: release", None
    ]  # fmt: skip
    assert coming["words"].endswith("no slots from 2026-05-05 00:00 to 2026-05-07 00:00 UTC because of freeze stop")
    timing = {"cron_expression": "0 2 * * *", "count": 1}
    for tags, note in ((["night"], "skipped by freeze stop: release"), (["day"], None)):
        preview = (await api.call("POST", "/schedules/$preview", {**timing, "tags": tags})).json()
        assert preview["slots"][0]["note"] == note
    why = await api.get("/slots/$why", schedule="nightly", slot="2026-05-05T02:00:00Z")
    assert "it will be skipped" in why["sentences"][0]
    assert (await api.get("/audit", action="freeze-windows.create"))["items"][0]["after"]["reason"] == "release"
    for change, status in (({"ends_at": "2026-05-01T00:00:00Z"}, 422), ({"mode": "x"}, 422), ({"extra": 1}, 422)):
        assert (await api.call("PATCH", "/freeze-windows/stop", change)).status_code == status
    assert await api.get("/freeze-windows/stop") == window
    edited = (await api.call("PATCH", "/freeze-windows/stop", {"tag": None, "mode": "hold"})).json()
    assert (edited["tag"], edited["mode"]) == (None, "hold")
    held = await api.get("/schedules/nightly/$next", count=1)
    assert held["slots"][0]["note"] == "held until 2026-05-07 00:00 UTC by freeze stop: release"


async def test_people_announce_and_delete_windows_on_the_dashboard(api: Api) -> None:
    await api.schedule("nightly")
    async with browser(api) as web:
        await log_in(api, web)
        dates = {"starts_at": "2026-05-04T12:00", "ends_at": "2026-05-05T12:00"}
        announced = await fill(web, "/freeze-windows", "/freeze-windows", name="stop", reason="release", **dates)
        assert "The freeze window is announced" in await done(web, announced)
        window = await api.get("/freeze-windows/stop")
        assert (window["starts_at"], window["kind"], window["queue"]) == ("2026-05-04T12:00:00+00:00", None, None)
        path = f"/freeze-windows/{window['id']}"
        for page in ("/", "/schedules/nightly", path):
            assert "release" in words((await web.get(page)).text), page
        await done(web, await fill(web, path, path, "PATCH", reason="release 4", audit_reason="more"))
        assert (await api.get("/freeze-windows/stop"))["reason"] == "release 4"
        assert "was deleted" in await done(web, await fill(web, path, path, "DELETE", audit_reason="done"))
    assert (await api.get("/freeze-windows"))["items"] == []
