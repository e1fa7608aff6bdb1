"""Deferred work runs after the answer, in order, and in the context of its caller."""

import asyncio
from contextvars import ContextVar
from functools import partial

from spawnmesh_runtime.defer import defer

_who: ContextVar[str] = ContextVar("who", default="nobody")


async def test_what_is_left_is_done_in_order_once_the_task_has_gone_on() -> None:
    done: list[str] = []

    async def answer() -> str:
        token = _who.set("ann")
        try:
            defer(lambda: done.append(f"first, for {_who.get()}"))
            defer(partial(done.append, "second"))
            return "answer"
        finally:
            _who.reset(token)
            done.append("left")

    assert await answer() == "answer"
    assert done == ["left"]
    await asyncio.sleep(0)
    assert done == ["left", "first, for ann", "second"]
