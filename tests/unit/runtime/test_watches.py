"""Open watches are counted, however they end."""

import asyncio

from spawnmesh_runtime.call import Call
from spawnmesh_runtime.interceptors.watches import counted_watches, open_watches

from tests.support.measured import Measured


async def test_watch_is_counted_while_it_is_open() -> None:
    measured = Measured()
    opened = asyncio.Event()

    async def wait(_: Call) -> None:
        opened.set()
        await asyncio.Event().wait()

    watch = counted_watches(wait, "service/Watch", open_watches(measured.metrics.meter))
    call = asyncio.ensure_future(watch(None))  # type: ignore[arg-type]
    await opened.wait()
    assert measured.points("spawnmesh.watches") == [({"rpc.method": "service/Watch"}, 1)]
    call.cancel()
    await asyncio.wait([call])
    assert measured.points("spawnmesh.watches") == [({"rpc.method": "service/Watch"}, 0)]
