"""Large entries are prepared in worker processes, so that one tenant's do not hold up another's."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime import cpu_workers

from tests.support.cpu_workers import until_ended, worker_pids
from tests.support.transcript.bodies import note, user
from tests.support.transcript.fixtures import Service, Session, refused, serving
from tests.support.waiting import eventually

LARGE = 64 * 1024
SECRET = "ghp_" + "a1B2c3D4e5" * 4


@pytest.fixture
async def fresh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[Service]:
    """A service without worker processes yet."""
    async with serving(databases["transcript"], keys) as service:
        yield service


def large(word: str) -> entry_pb2.EntryBody:
    return user(f"{word} " * (LARGE // len(word)) + SECRET)


async def masking_session(service: Service) -> Session:
    session = service.session()
    await session.prepare_tenant(1, mask_secrets=True)
    await session.create()
    return session


async def only_worker(session: Session) -> int:
    """Have the service start a worker for a large append, and return its process id."""
    before = worker_pids()
    await session.append([large("first")])
    (pid,) = worker_pids() - before
    return pid


def _texts(entries: list[Any]) -> list[str]:
    return [entry.body.message.content[0].text.text for entry in entries if entry.body.HasField("message")]


async def test_AppendEntries__a_large_entry_is_masked_in_another_process(fresh: Service) -> None:
    session = await masking_session(fresh)
    before = worker_pids()
    await session.append([note(f"small {SECRET}")])
    assert worker_pids() == before, "a small entry needs no worker"
    pid = await only_worker(session)
    assert pid != os.getpid()
    (text,) = _texts(await session.entries())
    assert text.endswith("[$redacted:provider_key]")


async def test_AppendEntries__a_worker_that_is_killed_is_replaced_and_the_append_succeeds(
    fresh: Service,
) -> None:
    session = await masking_session(fresh)
    pid = await only_worker(session)
    os.kill(pid, signal.SIGSTOP)
    appending = asyncio.create_task(session.append([large("second")]))
    await asyncio.sleep(0.1)  # Most often the worker has the work then; the outcome is the same.
    os.kill(pid, signal.SIGKILL)
    await appending
    assert [text.split()[0] for text in _texts(await session.entries())] == ["first", "second"]
    await until_ended({pid})


async def test_AppendEntries__work_beyond_the_time_limit_is_refused_and_nothing_is_stored(
    databases: dict[str, ServiceDsn], keys: Path
) -> None:
    async with serving(databases["transcript"], keys, cpu_work_seconds=5.0) as service:
        session = await masking_session(service)
        pid = await only_worker(session)
        os.kill(pid, signal.SIGSTOP)  # As if its work took forever.
        with refused(Reason.PROCESSING_TIME_EXCEEDED) as facts:
            await session.append([large("endless")])
        assert facts == {"max_seconds": "5.0"}
        await until_ended({pid})
        await session.append([large("second")])
        assert [text.split()[0] for text in _texts(await session.entries())] == ["first", "second"]


async def test_AppendEntries__a_tenant_that_waits_for_its_worker_holds_up_no_other(
    databases: dict[str, ServiceDsn], keys: Path
) -> None:
    async with serving(databases["transcript"], keys) as service:
        busy, other = await masking_session(service), await masking_session(service)
        pid = await only_worker(busy)
        os.kill(pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(busy.append([large(f"w{number}")])) for number in range(4)]
        await asyncio.sleep(0)
        for number in range(3):
            await other.append([note(f"small {number}")])
            await other.append([large(f"o{number}")])
            assert not any(task.done() for task in waiting)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*waiting)
        texts = [text.split()[0] for text in _texts(await busy.entries())]
        assert texts == ["first", "w0", "w1", "w2", "w3"], "a tenant's work is done in order"


async def test_AppendEntries__a_call_that_ends_early_ends_its_work(
    fresh: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await masking_session(fresh)
    pid = await only_worker(session)
    os.kill(pid, signal.SIGSTOP)
    answer_to, is_asked = cpu_workers._Worker.answer_to, threading.Event()

    def noted(worker: Any, call: Any) -> Any:
        is_asked.set()
        return answer_to(worker, call)

    monkeypatch.setattr(cpu_workers._Worker, "answer_to", noted)
    appending = asyncio.create_task(session.append([large("cancelled")]))
    await eventually(is_asked.is_set)
    appending.cancel()
    await until_ended({pid})
    await session.append([large("second")])
    assert [text.split()[0] for text in _texts(await session.entries())] == ["first", "second"]
