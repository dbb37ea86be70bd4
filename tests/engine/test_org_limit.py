"""How many costly requests run at once."""

import asyncio

from rota.engine.org_limit import OrgLimit


async def test_an_org_has_its_share_and_others_have_theirs() -> None:
    limit, release = OrgLimit(total=3, per_org=2), asyncio.Event()
    running: list[str] = []

    async def work(org: str) -> None:
        async with limit.place(org):
            running.append(org)
            await release.wait()

    tasks = [asyncio.ensure_future(work(org)) for org in ("a", "a", "a", "b", "b")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == ["a", "a", "b"]
    release.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert sorted(running) == ["a", "a", "a", "b", "b"]


async def test_a_place_is_free_again_after_an_error_or_a_cancellation() -> None:
    limit = OrgLimit(total=1, per_org=1)
    for _ in range(3):
        try:
            async with limit.place("a"):
                raise ValueError
        except ValueError:
            pass
    async with limit.place("a"):
        waiting = asyncio.ensure_future(limit.place("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(20), limit.place("a"):
        pass
