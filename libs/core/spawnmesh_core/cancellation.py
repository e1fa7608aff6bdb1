"""Cancellation that was lost on its way."""

import asyncio


def raise_if_cancelled() -> None:
    """Raises CancelledError where the current task was cancelled and does not know.

    A cancellation that meets the end of what its task waits for may be lost there, as in `asyncio.wait_for`, by which database connections wait.
    A loop without an end asks here in every round, or it would never hear of it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
