"""Large calls of one tenant neither exceed the service's memory nor block other tenants."""

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
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.inline import base64, text
from tests.support.attachment_blob.own_process import highest_rss, own_process, until_prepared
from tests.support.attachment_blob.uploads import MIB, begin, chunk, content, spec_of
from tests.support.waiting import eventually

RSS_LIMIT = 400 * MIB  # A replica has 512 MiB in the chart.
SEEMS_TO_HANG = Reason.DEPENDENCY_UNAVAILABLE.name


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def short_wait_service(
    databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BlobService]:
    """A service in which calls wait for half a second."""
    monkeypatch.setattr(app, "CALL_LIMIT", replace(app.CALL_LIMIT, wait_seconds=0.5))
    slow_s3 = {"s3_read_timeout_seconds": 300}
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys, **slow_s3) as service:
        yield service


async def outcome_of(staging: Awaitable[object]) -> str:
    try:
        await staging
    except MeshError as error:
        return error.reason.name
    return "OK"


async def staged(tenant: Tenant, content: str) -> None:
    """Stage a small set. On a busy machine the one replica may seem to hang: a caller calls again."""

    async def is_staged() -> bool:
        outcome = await outcome_of(tenant.stage(text("a", content)))
        assert outcome in ("OK", SEEMS_TO_HANG)
        return outcome == "OK"

    await eventually(is_staged)


@pytest.mark.timeout(300)
async def test_StageSet__burst_of_large_sets_needs_bounded_memory_and_lets_other_tenants_calls_succeed(
    blobs: BlobService,
) -> None:
    async with own_process(blobs) as (own, process):
        busy, other = own.tenant(), own.tenant()
        await until_prepared(busy, 256 * MIB)
        await until_prepared(other, 256 * MIB)
        await other.stage(text("a", "first"))
        done = asyncio.Event()
        watching = asyncio.ensure_future(highest_rss(process, done))
        files = [base64(f"{number}", b64.b64encode(os.urandom(MIB)).decode()) for number in range(4)]
        burst = [asyncio.ensure_future(outcome_of(busy.stage(*files, timeout_seconds=60))) for _ in range(50)]
        await first_done(burst, 1)

        for number in range(5):
            await staged(other, f"{number}")
        outcomes = await asyncio.gather(*burst)
        done.set()

    assert set(outcomes) <= {"OK", "POOL_EXHAUSTED", SEEMS_TO_HANG}
    assert "OK" in outcomes
    assert await watching < RSS_LIMIT


@pytest.mark.timeout(300)
async def test_UploadFile__queued_streams_need_little_memory(blobs: BlobService) -> None:
    data, hold = content(2 * MIB), asyncio.Event()

    async with own_process(blobs) as (own, process):
        tenant = own.tenant()
        await until_prepared(tenant, 256 * MIB)

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
        # Three streams are received and eight are queued. The replica refuses the others.
        await first_done(streams, 130, seconds=60)
        done.set()
        hold.set()
        await asyncio.gather(*streams)

    assert await watching - before < 256 * MIB


async def test_StageSet__waiting_call_is_refused_and_another_tenants_call_is_begun_at_once(
    short_wait_service: BlobService, gateway: Gateway
) -> None:
    busy, other = short_wait_service.tenant(), short_wait_service.tenant()
    await busy.prepare()
    await other.prepare()
    gateway.puts_go_on.clear()
    gateway.put_paths.clear()
    stagings = [asyncio.ensure_future(busy.stage(text("a", f"{n}"), timeout_seconds=60)) for n in range(6)]

    refusals = await asyncio.gather(*await first_done(stagings, 2), return_exceptions=True)

    for refusal in refusals:
        with refused(Reason.POOL_EXHAUSTED, pool="stage_calls") as caught:
            raise refusal if isinstance(refusal, MeshError) else AssertionError(refusal)
        assert caught[0].retry_after_seconds
    taken = asyncio.ensure_future(other.stage(text("b", "other"), timeout_seconds=60))
    await eventually(lambda: any(other.bucket in path for path in gateway.put_paths))
    assert sum(staging.done() for staging in stagings) == 2
    gateway.puts_go_on.set()
    assert (await taken).files[0].name == "b"
    assert sum(outcome == "OK" for outcome in [await outcome_of(staging) for staging in stagings]) == 4


async def first_done(
    tasks: "Sequence[asyncio.Future[Any]]", count: int, *, seconds: float = 60
) -> "list[asyncio.Future[Any]]":
    async with asyncio.timeout(seconds):
        while sum(task.done() for task in tasks) < count:
            await asyncio.sleep(0.01)
    return [task for task in tasks if task.done()]


async def test_StageSet__largest_request_is_accepted(short_wait_service: BlobService) -> None:
    tenant = short_wait_service.tenant()
    await tenant.prepare(max_file_bytes=15 * MIB, max_total_bytes=15 * MIB)

    staged = await tenant.stage(text("a", "x" * 15 * MIB), timeout_seconds=60)

    assert staged.files[0].size_bytes == 15 * MIB
