"""Batch work of one tenant, so that concurrent calls share one transaction."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class TenantBatcher(Generic[ItemT, ResultT]):
    """Runs one batch of a tenant at a time.

    Items that arrive while a batch runs form the next batch. `work` gets the tenant and the items,
    and returns one result for each item.
    """

    def __init__(self, work: Callable[[str, list[ItemT]], Awaitable[list[ResultT]]]) -> None:
        self._work = work
        self._pending: dict[str, list[tuple[ItemT, asyncio.Future[ResultT]]]] = {}
        # `finish` owns the tasks. A TaskGroup would cancel them with its block, and lose charges.
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, tenant_id: str, item: ItemT) -> ResultT:
        """Return the result for the item. Raises the error of the batch.

        The work is done even if the caller is cancelled.
        """
        entry: tuple[ItemT, asyncio.Future[ResultT]] = (item, asyncio.get_running_loop().create_future())
        if tenant_id in self._pending:
            self._pending[tenant_id].append(entry)
        else:
            self._pending[tenant_id] = [entry]
            task = asyncio.create_task(self._work_off(tenant_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await entry[1]

    async def finish(self) -> None:
        """Wait until every batch is done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work_off(self, tenant_id: str) -> None:
        while batch := self._pending[tenant_id]:
            self._pending[tenant_id] = []
            await self._do(tenant_id, batch)
        del self._pending[tenant_id]

    async def _do(self, tenant_id: str, batch: list[tuple[ItemT, asyncio.Future[ResultT]]]) -> None:
        try:
            results = await self._work(tenant_id, [item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets the error
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
