"""However many large calls one tenant makes at once, the service keeps its memory, and other tenants are served."""

import asyncio
import base64 as b64
import os
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_attachment_blob import app
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.attachment_blob_fixtures import (
    BlobService,
    base64,
    blobs,
    open_blob_service,
    refused,
    text,
)
from tests.contract.attachment_blob_gateway import Gateway, open_gateway
from tests.contract.attachment_blob_uploads import MIB, begin, chunk, content, spec_of
from tests.contract.test_attachment_blob_memory import highest_rss, own_process, until_prepared

__all__ = ["blobs"]

RSS_LIMIT = 400 * MIB  # Of the 512 MiB that a replica has in the chart.


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def hurried(
    databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BlobService]:
    """A service that lets calls wait for half a second."""
    monkeypatch.setattr(app, "TURNS", replace(app.TURNS, wait_seconds=0.5))
    patient = {"s3_read_timeout_seconds": 30}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **patient) as service:
        yield service


async def outcome_of(staging: Awaitable[object]) -> str:
    try:
        await staging
    except MeshError as error:
        return error.reason.name
    return "OK"


@pytest.mark.timeout(300)
async def test_StageSet__a_burst_of_large_sets_leaves_memory_and_other_tenants_alone(blobs: BlobService) -> None:
    async with own_process(blobs) as (own, process):
        busy, other = own.tenant(), own.tenant()
        await until_prepared(busy)
        await until_prepared(other)
        await other.stage(text("a", "first"))
        done = asyncio.Event()
        watching = asyncio.ensure_future(highest_rss(process, done))
        files = [base64(f"{number}", b64.b64encode(os.urandom(MIB)).decode()) for number in range(4)]
        burst = [asyncio.ensure_future(outcome_of(busy.stage(*files, timeout_seconds=60))) for _ in range(80)]
        await asyncio.sleep(1)

        waits = []
        for number in range(5):
            begin_time = monotonic_seconds()
            await other.stage(text("a", f"{number}"))
            waits.append(monotonic_seconds() - begin_time)
            await asyncio.sleep(0.2)
        outcomes = await asyncio.gather(*burst)
        done.set()

    assert set(outcomes) <= {"OK", "POOL_EXHAUSTED"}
    assert "OK" in outcomes
    assert sorted(waits)[len(waits) // 2] < 3
    assert await watching < RSS_LIMIT


@pytest.mark.timeout(300)
async def test_UploadFile__streams_that_wait_hold_next_to_nothing(blobs: BlobService) -> None:
    data, hold = content(2 * MIB), asyncio.Event()

    async with own_process(blobs) as (own, process):
        tenant = own.tenant()
        await until_prepared(tenant)

        async def stream(seed: int) -> AsyncIterator[pb.UploadFileRequest]:
            yield begin(spec_of(data, size_bytes=50 * MIB, sha256=f"{seed:064x}"))
            yield chunk(0, data)
            await hold.wait()

        async def send(seed: int) -> None:
            with suppress(MeshError):
                await tenant.call("UploadFile", stream(seed), token=tenant.client_token(), timeout_seconds=60)

        before, done = process.memory_info().rss, asyncio.Event()
        watching = asyncio.ensure_future(highest_rss(process, done))
        streams = [asyncio.ensure_future(send(seed)) for seed in range(150)]
        await asyncio.sleep(15)
        done.set()
        hold.set()
        await asyncio.gather(*streams)

    assert await watching - before < 256 * MIB


async def test_StageSet__what_waits_for_long_is_sent_away_and_another_tenants_set_is_taken(
    hurried: BlobService, gateway: Gateway
) -> None:
    busy, other = hurried.tenant(), hurried.tenant()
    await busy.prepare()
    await other.prepare()
    gateway.puts_go_on.clear()
    stagings = [asyncio.ensure_future(busy.stage(text("a", f"{n}"), timeout_seconds=60)) for n in range(6)]

    refusals = await asyncio.gather(*await first_done(stagings, 2), return_exceptions=True)

    for refusal in refusals:
        with refused(Reason.POOL_EXHAUSTED, pool="stage_calls") as caught:
            raise refusal if isinstance(refusal, MeshError) else AssertionError(refusal)
        assert caught[0].retry_after_seconds
    taken = asyncio.ensure_future(other.stage(text("b", "other"), timeout_seconds=60))
    gateway.puts_go_on.set()
    assert (await taken).files[0].name == "b"
    assert sum(outcome == "OK" for outcome in [await outcome_of(staging) for staging in stagings]) == 4


async def first_done(tasks: "Sequence[asyncio.Future[Any]]", count: int) -> "list[asyncio.Future[Any]]":
    async with asyncio.timeout(20):
        while sum(task.done() for task in tasks) < count:
            await asyncio.sleep(0.01)
    return [task for task in tasks if task.done()]


async def test_StageSet__a_request_that_is_as_large_as_may_be_is_taken(hurried: BlobService) -> None:
    tenant = hurried.tenant()
    await tenant.prepare(max_file_bytes=15 * MIB, max_total_bytes=15 * MIB)

    staged = await tenant.stage(text("a", "x" * 15 * MIB), timeout_seconds=60)

    assert staged.files[0].size_bytes == 15 * MIB
