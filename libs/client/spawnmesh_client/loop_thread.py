"""An event loop in a thread of its own, for programs without asyncio."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from typing import Any, TypeVar, cast

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

T = TypeVar("T")


class _LoopEnded(RuntimeError):
    """The loop takes no coroutine any more."""


class LoopThread:
    """Run coroutines for any number of threads. Use `opened` to begin and end it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._work, name="spawnmesh-client", daemon=True)

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator["LoopThread"]:
        """Run the loop during the block.

        At its end, running calls of other threads are cancelled.
        """
        thread = cls()
        thread._thread.start()
        thread._ready.wait()
        try:
            yield thread
        finally:
            thread._close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop and return its result.

        An interrupt of this thread, such as Ctrl-C, cancels it. Raises RuntimeError after the end
        of the loop and on the loop itself, for example in a callback for progress.
        """
        try:
            future = self._begin(work)
        except BaseException:  # An interrupt may come when the loop already has the coroutine.
            self._abandon(work)
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise MeshError(Reason.CANCELLED, "the mesh was closed during the call") from None
        finally:
            future.cancel()

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous generator. Closing the iterator closes it."""
        try:
            while True:
                more, item = self.run(_next(items))
                if not more:
                    return
                yield cast(T, item)
        finally:
            with suppress(_LoopEnded):  # What ended the iteration is raised, not this.
                self.run(_closed(items))

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context manager during the block."""
        value = self.run(_coroutine(manager.__aenter__()))
        try:
            yield value
        finally:
            self.run(_coroutine(manager.__aexit__(None, None, None)))

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the client cannot call the mesh: it would wait for itself")
        with self._lock:  # The loop does not end in between.
            if self._loop is None:
                raise _LoopEnded("the mesh is closed: the block of `connect` has ended")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _abandon(self, work: Coroutine[Any, Any, object]) -> None:
        """Cancel the coroutine if the loop has it, and close it otherwise."""
        with self._lock:
            if self._loop is None or threading.current_thread() is self._thread:
                work.close()
            else:
                self._loop.call_soon_threadsafe(_cancel, work)

    def _work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def _close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._stop is not None:
            loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def _cancel(work: Coroutine[Any, Any, object]) -> None:
    """Cancel the task of the coroutine. It has none if it was never handed over."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in tasks:
        task.cancel()
    if not tasks:
        work.close()


async def _next(items: AsyncIterator[T]) -> tuple[bool, T | None]:
    try:
        return True, await anext(items)
    except StopAsyncIteration:
        return False, None


async def _closed(items: Any) -> None:
    async with aclosing(items):
        pass


async def _coroutine(work: Any) -> Any:
    return await work
