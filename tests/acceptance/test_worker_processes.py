"""Several worker processes of one command get their secrets without an environment that shows them."""

import sys
from pathlib import Path

import pytest

from tests.acceptance.cluster import until
from tests.acceptance.conftest import MakeCluster


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_worker_processes_get_the_url_of_the_database_through_a_pipe(cluster: MakeCluster) -> None:
    async with cluster() as here:
        (parent,) = here.start(processes=2)

        async def registered() -> bool:
            assert parent.alive, parent.log_text()
            return len([row for row in await here.workers() if row.state == "alive"]) == 2

        await until(registered, 60, "two workers register")
        for pid in (parent.pid, *(row.pid for row in await here.workers())):
            assert here.url not in environment_of(pid)
        await here.enqueue("quick", 4)
        await here.wait_for_line("end", count=4)


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()
