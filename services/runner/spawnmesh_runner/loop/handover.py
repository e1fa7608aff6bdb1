"""The handover of a run that waits for a person or a budget. A lost lease is no loss meanwhile."""

import asyncio


class Handover:
    """Tells the heartbeats whether the call that gives the lease up is under way, or was made."""

    def __init__(self) -> None:
        self._is_over = asyncio.Event()
        self._is_over.set()

    def begin(self) -> None:
        """Note that the lease is about to be given up."""
        self._is_over.clear()

    def fail(self) -> None:
        """Note that the lease was not given up: the work goes on."""
        self._is_over.set()

    async def wait_until_failed(self) -> None:
        """Return at once without a handover, or else when it fails."""
        await self._is_over.wait()
