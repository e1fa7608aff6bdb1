"""Worker processes: what a caller gets back, who is served, and what ends them."""

import asyncio
import os
import re
import signal
import sys
import textwrap
from collections.abc import AsyncIterator

import pytest
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.cpu_workers import INLINE_BYTES, CpuWorkers

from tests.support.cpu_workers import cpu_workers, until_ended, worker_pids

LARGE = INLINE_BYTES + 1


@pytest.fixture
async def workers() -> AsyncIterator[CpuWorkers]:
    async with cpu_workers() as opened:
        yield opened


class _WantsTwo(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def _pid(_: bytes = b"") -> int:
    return os.getpid()


def _length(content: bytes, *, times: int) -> int:
    return len(content) * times


def _refuse(path: str) -> None:
    raise invalid(path, "is wrong")


def _fail() -> None:
    raise _WantsTwo("a", "b")


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _compute() -> bool:
    """Hold the interpreter for longer than any test runs."""
    return re.fullmatch(r"(a+)+b", "a" * 100) is not None


async def test_small_content_stays_in_the_process_and_large_content_leaves_it(workers: CpuWorkers) -> None:
    assert await workers.run("t", INLINE_BYTES, _pid) == os.getpid()
    pid = await workers.run("t", LARGE, _pid)
    assert pid in worker_pids()
    assert await workers.run("t", LARGE, _pid) == pid, "an idle worker is used again"


async def test_arguments_and_results_may_be_large(workers: CpuWorkers) -> None:
    content = bytes(24 * 1024 * 1024)
    assert await workers.run("t", len(content), _length, content, times=2) == 2 * len(content)


async def test_a_refusal_in_a_worker_keeps_its_facts(workers: CpuWorkers) -> None:
    with pytest.raises(MeshError) as error:
        await workers.run("t", LARGE, _refuse, "entries[0]")
    assert error.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in error.value.violations] == ["entries[0]"]


async def test_an_error_that_cannot_be_sent_is_named(workers: CpuWorkers) -> None:
    pid = await workers.run("t", LARGE, _pid)
    with pytest.raises(RuntimeError, match="_WantsTwo in a worker process"):
        await workers.run("t", LARGE, _fail)
    assert await workers.run("t", LARGE, _pid) == pid, "the worker goes on"


async def test_work_that_ends_its_worker_twice_is_refused_and_the_worker_replaced(
    workers: CpuWorkers,
) -> None:
    with pytest.raises(MeshError) as error:
        await workers.run("t", LARGE, _end)
    assert error.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await workers.run("t", LARGE, _pid) in worker_pids()


async def test_a_worker_that_was_killed_while_idle_is_replaced(workers: CpuWorkers) -> None:
    pid = await workers.run("t", LARGE, _pid)
    os.kill(pid, signal.SIGKILL)
    await until_ended({pid})
    assert await workers.run("t", LARGE, _pid) != pid


async def test_work_beyond_the_time_limit_is_refused_and_its_worker_ended() -> None:
    async with cpu_workers(seconds=1.0) as workers:
        pid = await workers.run("t", LARGE, _pid)
        with pytest.raises(MeshError) as error:
            await workers.run("t", LARGE, _compute)
        assert error.value.reason is Reason.PROCESSING_TIME_EXCEEDED
        assert error.value.facts == {"max_seconds": "1.0"}
        assert pid not in worker_pids()
        assert await workers.run("t", LARGE, _pid) != pid


async def test_a_cancelled_call_ends_its_work(workers: CpuWorkers) -> None:
    pid = await workers.run("t", LARGE, _pid)
    call = asyncio.create_task(workers.run("t", LARGE, _compute))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_ended({pid})
    assert await workers.run("t", LARGE, _pid) != pid


async def test_a_tenant_leaves_a_worker_to_the_others() -> None:
    async with cpu_workers(count=2) as workers:
        held = [asyncio.create_task(workers.run("busy", LARGE, _compute)) for _ in range(5)]
        for _ in range(3):
            assert await workers.run("other", LARGE, _pid) in worker_pids()
        assert not any(call.done() for call in held)
        for call in held:
            call.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert await workers.run("busy", LARGE, _pid) in worker_pids()


async def test_the_end_of_the_block_ends_the_workers() -> None:
    async with cpu_workers() as workers:
        pid = await workers.run("t", LARGE, _pid)
    await until_ended({pid})


_SERVICE = """
    import asyncio, os
    from tests.contract.runtime.test_cpu_workers import LARGE, _compute, _pid
    from tests.support.cpu_workers import cpu_workers

    async def main():
        async with cpu_workers() as workers:
            computing = await workers.run("computing", LARGE, _pid)
            held = asyncio.create_task(workers.run("computing", LARGE, _compute))
            idle = await workers.run("idle", LARGE, _pid)
            print(computing, idle, flush=True)
            await held

    asyncio.run(main())
"""


async def test_workers_end_with_a_service_that_is_killed() -> None:
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_SERVICE), stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    line = await service.stdout.readline()
    service.kill()
    await service.wait()
    computing, idle = map(int, line.split())
    await until_ended({computing, idle})
