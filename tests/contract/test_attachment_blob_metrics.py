"""What operators see of collections in their metrics."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_attachment_blob.domain.sets import object_key
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.process import start_process

from tests.contract.attachment_blob_fixtures import BlobService, open_blob_service, text
from tests.contract.test_attachment_blob_collect import others_had_their_turn


@pytest.fixture
async def counting(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service without a grace period, whose workers let Prometheus in."""
    more = {"collect_grace_seconds": 0, "metrics_listen": "127.0.0.1:0"}
    async with open_blob_service(databases["attachment_blob"], s3, keys, **more) as service:
        yield service


def _samples(port: int | None) -> dict[str, float]:
    lines = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def test_collections_are_counted_by_what_they_found_and_name_no_tenant(
    counting: BlobService, postgres: Postgres
) -> None:
    await others_had_their_turn(postgres)
    tenant = counting.tenant()
    await tenant.prepare()
    lost = await tenant.stage(text("a", "lost"))
    tenant.lose(lost.files[0].sha256)
    for digit in "01":
        tenant.put(object_key(digit * 64), b"x")
    async with (
        start_process("attachment-blob", counting.settings) as process,
        open_worker(process, counting.settings) as worker,
    ):
        await worker.work_once()
        samples = await asyncio.to_thread(_samples, process.metrics.port)

    found = 'spawnmesh_garbage_items_total{spawnmesh_garbage_kind="%s"}'
    assert samples[found % "orphan_object"] >= 2
    assert samples[found % "missing_object"] >= 1
    assert samples["spawnmesh_garbage_collection_duration_seconds_count"] >= 1
    assert samples["spawnmesh_garbage_objects_compared_total"] >= 2
    assert not any(tenant.tenant_id in name for name in samples)


async def test_a_dry_run_counts_nothing_and_a_failed_collection_says_why(counting: BlobService) -> None:
    tenant = counting.tenant()
    await tenant.prepare()
    tenant.put(object_key("0" * 64), b"x")
    unreachable = counting.settings.model_copy(update={"s3_endpoint": "127.0.0.1:1"})
    async with (
        start_process("attachment-blob", unreachable) as process,
        open_worker(process, unreachable) as worker,
    ):
        for dry_run in (True, False):
            with pytest.raises(MeshError):
                await worker.collecting.collect(tenant.tenant_id, dry_run=dry_run)
        samples = await asyncio.to_thread(_samples, process.metrics.port)

    assert samples['spawnmesh_garbage_collection_duration_seconds_count{error_type="S3Failed"}'] == 1
    assert not any(name.startswith("spawnmesh_garbage_items_total") for name in samples)
