"""A command does not outlive its worker, even if the worker is killed."""

import sys
import uuid
from functools import partial

import pytest

from tests.acceptance.cluster import until
from tests.acceptance.conftest import MakeCluster
from tests.acceptance.test_cancel import all_sleep

APP = """
some = "sleep 600 MARK & setsid sleep 600 MARK & (setsid sh -c 'sleep 600 MARK; true') & sleep 600 MARK; true"
app.shell("command", some)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_command_dies_with_its_killed_worker_with_all_that_it_started(cluster: MakeCluster) -> None:
    mark = f"0.{uuid.uuid4().int % 10**12:012}"  # sleep adds up its numbers: this one names the processes of this test
    async with cluster(APP.replace("MARK", mark)) as here:
        (worker,) = await here.up()
        await here.enqueue("command")
        await until(partial(all_sleep, mark, 4), 30, "the command has started its processes")
        worker.kill()
        await until(partial(all_sleep, mark, 0), 20, "all of it is gone")
