"""Metrics of garbage collections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.process import start_process

from tests.support.attachment_blob.fakes import metric_samples, skip_other_tenants
from tests.support.attachment_blob.fixtures import BlobService, key_of_hash, open_blob_service
from tests.support.attachment_blob.inline import text


@pytest.fixture
async def counting(
    databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path
) -> AsyncIterator[BlobService]:
    """A service without a grace period, whose workers serve Prometheus."""
    more = {"collect_grace_seconds": 0, "metrics_listen": "127.0.0.1:0"}
    async with open_blob_service(databases["attachment_blob"], s3, keys, **more) as service:
        yield service


async def test_metrics_count_found_items_by_kind_without_tenants(
    counting: BlobService, postgres: Postgres
) -> None:
    await skip_other_tenants(postgres)
    tenant = counting.tenant()
    await tenant.prepare()
    lost = await tenant.stage(text("a", "lost"))
    tenant.lose(lost.files[0].sha256)
    for digit in "01":
        tenant.put(key_of_hash(digit * 64), b"x")
    async with (
        start_process("attachment-blob", counting.settings) as process,
        open_worker(process, counting.settings) as worker,
    ):
        await worker.work_once()
        samples = await asyncio.to_thread(metric_samples, process.metrics.port)

    found = 'spawnmesh_garbage_items_total{spawnmesh_garbage_kind="%s"}'
    assert samples[found % "orphan_object"] >= 2
    assert samples[found % "missing_object"] >= 1
    assert samples["spawnmesh_garbage_collection_duration_seconds_count"] >= 1
    assert samples["spawnmesh_garbage_objects_compared_total"] >= 2
    assert not any(tenant.tenant_id in name for name in samples)


async def test_metrics_skip_dry_runs_and_name_the_error_of_a_failure(counting: BlobService) -> None:
    tenant = counting.tenant()
    await tenant.prepare()
    tenant.put(key_of_hash("0" * 64), b"x")
    unreachable = counting.settings.model_copy(update={"s3_endpoint": "127.0.0.1:1"})
    async with (
        start_process("attachment-blob", unreachable) as process,
        open_worker(process, unreachable) as worker,
    ):
        for dry_run in (True, False):
            with pytest.raises(MeshError):
                await worker.collector.collect(tenant.tenant_id, dry_run=dry_run)
        samples = await asyncio.to_thread(metric_samples, process.metrics.port)

    assert samples['spawnmesh_garbage_collection_duration_seconds_count{error_type="S3Failed"}'] == 1
    found = [value for name, value in samples.items() if name.startswith("spawnmesh_garbage_items_total")]
    assert found
    assert not any(found)
