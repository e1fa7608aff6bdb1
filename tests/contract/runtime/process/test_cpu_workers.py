"""Worker processes: what a caller gets back, who is served, and what ends them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.cpu_workers import INLINE_BYTES, CpuWorkers

from tests.support import cpu_work
from tests.support.cpu_work import LARGE
from tests.support.cpu_workers import cpu_workers, until_ended, worker_pids
from tests.support.waiting import eventually


@pytest.fixture
async def workers() -> AsyncIterator[CpuWorkers]:
    async with cpu_workers() as opened:
        yield opened


async def test_small_content_stays_in_the_process_and_large_content_leaves_it(workers: CpuWorkers) -> None:
    assert await workers.run("t", INLINE_BYTES, cpu_work.pid) == os.getpid()
    pid = await workers.run("t", LARGE, cpu_work.pid)
    assert pid in worker_pids()
    assert await workers.run("t", LARGE, cpu_work.pid) == pid, "an idle worker is used again"


async def test_arguments_and_results_may_be_large(workers: CpuWorkers) -> None:
    content = bytes(24 * 1024 * 1024)
    assert await workers.run("t", len(content), cpu_work.length, content, times=2) == 2 * len(content)


async def test_a_refusal_in_a_worker_keeps_its_facts(workers: CpuWorkers) -> None:
    with pytest.raises(MeshError) as error:
        await workers.run("t", LARGE, cpu_work.refuse, "entries[0]")
    assert error.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in error.value.violations] == ["entries[0]"]


async def test_an_error_that_cannot_be_sent_is_named(workers: CpuWorkers) -> None:
    pid = await workers.run("t", LARGE, cpu_work.pid)
    with pytest.raises(RuntimeError, match="_WantsTwo in a worker process"):
        await workers.run("t", LARGE, cpu_work.fail)
    assert await workers.run("t", LARGE, cpu_work.pid) == pid, "the worker goes on"


async def test_work_that_ends_its_worker_twice_is_refused_and_the_worker_replaced(
    workers: CpuWorkers,
) -> None:
    with pytest.raises(MeshError) as error:
        await workers.run("t", LARGE, cpu_work.end)
    assert error.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await workers.run("t", LARGE, cpu_work.pid) in worker_pids()


async def test_workers_that_were_killed_while_idle_are_replaced(workers: CpuWorkers) -> None:
    before = worker_pids()
    held = asyncio.create_task(workers.run("t", LARGE, cpu_work.compute))
    other = await workers.run("other", LARGE, cpu_work.pid)
    (computing,) = await eventually(lambda: worker_pids() - before - {other})
    await workers.run("other", LARGE, cpu_work.pid)
    os.kill(other, signal.SIGKILL)
    await until_ended({other})
    assert await workers.run("other", LARGE, cpu_work.pid) not in {other, computing}
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)


async def test_work_beyond_the_time_limit_is_refused_and_its_worker_ended() -> None:
    async with cpu_workers(cpu_work.__name__, seconds=3.0) as workers:
        pid = await workers.run("t", LARGE, cpu_work.pid)
        with pytest.raises(MeshError) as error:
            await workers.run("t", LARGE, cpu_work.compute)
        assert error.value.reason is Reason.PROCESSING_TIME_EXCEEDED
        assert error.value.facts == {"max_seconds": "3.0"}
        assert pid not in worker_pids()
        assert await workers.run("t", LARGE, cpu_work.pid) != pid


async def test_a_cancelled_call_ends_its_work(workers: CpuWorkers) -> None:
    pid = await workers.run("t", LARGE, cpu_work.pid)
    call = asyncio.create_task(workers.run("t", LARGE, cpu_work.compute))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_ended({pid})
    assert await workers.run("t", LARGE, cpu_work.pid) != pid


async def test_a_tenant_leaves_a_worker_to_the_others() -> None:
    async with cpu_workers(count=2) as workers:
        held = [asyncio.create_task(workers.run("busy", LARGE, cpu_work.compute)) for _ in range(5)]
        for _ in range(3):
            assert await workers.run("other", LARGE, cpu_work.pid) in worker_pids()
        assert not any(call.done() for call in held)
        for call in held:
            call.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert await workers.run("busy", LARGE, cpu_work.pid) in worker_pids()


async def test_the_end_of_the_block_ends_the_workers() -> None:
    async with cpu_workers() as workers:
        pid = await workers.run("t", LARGE, cpu_work.pid)
    await until_ended({pid})


async def test_workers_end_with_a_service_that_is_killed() -> None:
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-m", cpu_work.__name__, stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    line = await service.stdout.readline()
    service.kill()
    await service.wait()
    computing, idle = map(int, line.split())
    assert computing != idle
    await until_ended({computing, idle})
