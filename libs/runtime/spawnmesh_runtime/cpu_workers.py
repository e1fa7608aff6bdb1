"""A few worker processes for computations that would stall the event loop.

A regular expression, a JSON parser or a tokenizer holds the interpreter for its whole pass, also in
a thread: one tenant's large message would stall the calls of all tenants. Workers are processes
of their own, which tenants take in turn.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from opentelemetry.metrics import Meter
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.cpu_worker import Call, WorkResult, serve
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_runtime.settings import CpuWorkerSettings
from spawnmesh_runtime.telemetry import traced

P = ParamSpec("P")
T = TypeVar("T")

INLINE_BYTES = 16 * 1024
"""Content up to this size is worked on by the event loop: it takes some milliseconds at most, and a
call of a worker takes about one.
"""

_START_SECONDS = 60.0
_MAX_WAITING = 256
_WAIT_SECONDS = 60.0
_PREFIX = "cpu-worker"


class _WorkerLost(Exception):
    """The worker ended before it answered."""


class _Worker:
    """A worker process. One thread at a time uses it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start the process and wait until it is ready. Raises _WorkerLost."""
        context = get_context("forkserver")
        # The server of forks imports the modules once, and its forks share their memory. The
        # service itself cannot fork: it has threads.
        context.set_forkserver_preload([*modules])
        ours, theirs = context.Pipe()
        self._connection: Connection[bytes, bytes] = ours
        self._process = context.Process(target=serve, args=(theirs, modules), daemon=True, name=_PREFIX)
        try:
            with theirs:
                self._process.start()
            if not ours.poll(_START_SECONDS):
                raise _WorkerLost
            ours.recv_bytes()
        except (EOFError, OSError):
            self.end()
            raise _WorkerLost from None
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def is_alive(self) -> bool:
        return self._process.pid is not None and self._process.is_alive()

    def answer_to(self, call: Call) -> WorkResult:
        """Send the call and return its answer. Raises _WorkerLost."""
        request = pickle.dumps(call)
        try:
            self._connection.send_bytes(request)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise _WorkerLost from None
        value: WorkResult = pickle.loads(answer)  # noqa: S301 - sent by a process of our own
        return value

    def kill(self) -> None:
        """End the process, whatever it does. A thread that calls it gets _WorkerLost."""
        if self.is_alive:
            self._process.kill()

    def end(self) -> None:
        """End the process and release what belongs to it. No thread may use it any more."""
        self.kill()
        self._connection.close()
        if self._process.pid is not None:
            self._process.join()
            self._process.close()


class CpuWorkers:
    """Run functions in worker processes, each of which does one at a time.

    The processes start when they are needed. One that was ended, by the time limit or by the
    kernel, is replaced.
    """

    def __init__(self, settings: CpuWorkerSettings, meter: Meter, modules: Sequence[str]) -> None:
        self._seconds = settings.cpu_work_seconds
        self._modules = modules
        self._threads = ThreadPoolExecutor(settings.cpu_worker_count, thread_name_prefix=_PREFIX)
        self._limiter = FairLimiter(
            LimiterPolicy(
                "cpu workers",
                "too much large content is being processed; call again later",
                capacity=settings.cpu_worker_count,
                max_waiting=_MAX_WAITING,
                wait_seconds=_WAIT_SECONDS,
            )
        )
        self._idle: list[_Worker] = []
        self._durations = meter.create_histogram(
            "spawnmesh.cpu_work.duration",
            unit="s",
            description="Time that worker processes took for a piece of work, by function and outcome.",
        )

    async def run(
        self, tenant_id: str, size_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what the function returns: called here for little content, or else by a worker.

        The function, its arguments, its result and its exceptions have to be picklable. Raises
        what it raises, and

        - POOL_EXHAUSTED if too much waits, or if it waits for a minute,
        - PROCESSING_TIME_EXCEEDED if the work takes longer than `cpu_work_seconds`,
        - DEPENDENCY_UNAVAILABLE if the worker ended twice before it answered.

        A cancellation ends the work.
        """
        if size_bytes <= INLINE_BYTES:
            return work(*args, **kwargs)
        name, call = _name_of(work), partial(work, *args, **kwargs)
        async with self._limiter.hold(tenant_id), traced("cpu_work", code__function__name=name) as span:
            span.set_attribute("spawnmesh.cpu_work.size", size_bytes)
            try:
                pid, answer = await self._answer(name, call)
            except _WorkerLost:
                pid, answer = await self._second_answer(name, call)
            span.set_attribute("process.pid", pid)
        if answer.error is not None:
            raise answer.error
        result: T = answer.value
        return result

    async def close(self) -> None:
        """End all workers. No call may be in flight."""
        for worker in self._idle:
            await asyncio.to_thread(worker.end)
        self._idle.clear()
        self._threads.shutdown()

    async def _second_answer(self, name: str, call: Call) -> tuple[int, WorkResult]:
        try:
            return await self._answer(name, call)
        except _WorkerLost:
            raise unavailable("a worker process") from None

    async def _answer(self, name: str, call: Call) -> tuple[int, WorkResult]:
        worker = self._idle_worker() or await self._start()
        calling = asyncio.get_running_loop().run_in_executor(self._threads, worker.answer_to, call)
        began, outcome = monotonic_seconds(), "cancelled"
        try:
            async with asyncio.timeout(self._seconds):
                answer = await asyncio.shield(calling)
            outcome = "done" if answer.error is None else "raised"
        except TimeoutError:
            outcome = "timed_out"
            raise MeshError(
                Reason.PROCESSING_TIME_EXCEEDED,
                f"the content takes more than {self._seconds:g} s to process; send it in smaller parts",
                facts={"max_seconds": self._seconds},
            ) from None
        except _WorkerLost:
            outcome = "lost"
            raise
        finally:
            seconds = monotonic_seconds() - began
            self._durations.record(
                seconds, {"code.function.name": name, "spawnmesh.cpu_work.outcome": outcome}
            )
            if outcome in ("done", "raised"):
                self._idle.append(worker)
            else:
                worker.kill()
                await shield_until_done(_end(worker, calling))
        return worker.pid, answer

    def _idle_worker(self) -> _Worker | None:
        """Return an idle worker, and forget those that were ended meanwhile."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.end()
        return None

    async def _start(self) -> _Worker:
        """Start a worker. It is kept for others if this call is cancelled meanwhile."""
        starting = asyncio.get_running_loop().run_in_executor(self._threads, _Worker, self._modules)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await shield_until_done(self._keep(starting))
            raise

    async def _keep(self, starting: "asyncio.Future[_Worker]") -> None:
        await asyncio.wait({starting})
        if starting.exception() is None:
            self._idle.append(starting.result())


def _name_of(work: Callable[..., Any]) -> str:
    while isinstance(work, partial):
        work = work.func
    return getattr(work, "__qualname__", type(work).__name__).lstrip("_")


async def _end(worker: _Worker, calling: "asyncio.Future[WorkResult]") -> None:
    """Wait until the thread has left the worker, whose process was killed, and release it."""
    await asyncio.wait({calling})
    calling.exception()  # Marks it as retrieved.
    await asyncio.to_thread(worker.end)


@asynccontextmanager
async def open_cpu_workers(
    settings: CpuWorkerSettings, meter: Meter, *, modules: Sequence[str]
) -> AsyncIterator[CpuWorkers]:
    """Run worker processes for the block. `modules` have the functions that they will call."""
    workers = CpuWorkers(settings, meter, modules)
    try:
        yield workers
    finally:
        await workers.close()
