"""Run coroutines concurrently and fail with the first of their errors."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def run_concurrently(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all coroutines concurrently. The first failure cancels the others and is raised."""
    # In a task of its own: in Python 3.11 a group that fails leaves its task marked as cancelled.
    try:
        await asyncio.create_task(_run_group(work))
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


async def _run_group(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


def first_failure(failure: BaseException) -> BaseException:
    """Return the failure that cancelled the other tasks of a group; groups may be nested."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
