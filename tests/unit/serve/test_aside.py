"""What takes long is done beside the event loop, so much at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sanderling.core.errors import QueueFullError
from sanderling.serve.aside import Aside


def test_the_loop_goes_on_and_gets_the_result():
    async def run():
        release, aside = threading.Event(), Aside()
        future = aside.run(lambda: release.wait(10) and "done")
        await asyncio.sleep(0)
        assert not future.done()
        release.set()
        assert await future == "done"
        aside.close()

    asyncio.run(run())


def test_an_error_reaches_the_one_who_waits():
    async def run():
        aside = Aside()
        with pytest.raises(KeyError):
            await aside.run({}.__getitem__, 1)
        aside.close()

    asyncio.run(run())


def test_one_call_too_many_is_refused_and_there_is_room_again_later():
    async def run():
        release, aside = threading.Event(), Aside(threads=1, most=2)
        waiting = [aside.run(release.wait, 10) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 large requests wait"):
            aside.run(int)
        release.set()
        await asyncio.gather(*waiting)
        assert await aside.run(int) == 0
        aside.close()

    asyncio.run(run())
