"""Work that is done at once, and fails as one."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def side_by_side(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Does all of it at once. The first failure cuts off the rest, and is what is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


def first_failure(failure: BaseException) -> BaseException:
    """The failure that cut off the others of a group of tasks."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
