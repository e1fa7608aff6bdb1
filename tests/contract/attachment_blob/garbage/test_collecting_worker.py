"""The worker collects the garbage of each tenant, and records what it removes."""

import asyncio

from google.protobuf.duration_pb2 import Duration
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_runtime.process import start_process

from tests.support.attachment_blob.fakes import skip_other_tenants
from tests.support.attachment_blob.fixtures import BlobService, key_of_hash
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import WHOLE
from tests.support.waiting import eventually


async def test_the_worker_collects_once_for_each_tenant_and_interval(
    eager: BlobService, postgres: Postgres
) -> None:
    await skip_other_tenants(postgres)
    tenants = [eager.tenant() for _ in range(2)]
    for tenant in tenants:
        await tenant.prepare()
        tenant.put(key_of_hash("0" * 64), b"x")

    async with (
        start_process("attachment-blob", eager.settings) as process,
        open_worker(process, eager.settings) as worker,
    ):
        working = asyncio.ensure_future(worker.work())
        await eventually(lambda: all(tenant.object_keys() == [] for tenant in tenants))
        tenants[0].put(key_of_hash("0" * 64), b"x")
        await worker.work_once()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    assert tenants[0].object_keys() == [key_of_hash("0" * 64)]


async def test_the_worker_records_what_it_removes_because_of_its_age(
    eager: BlobService, postgres: Postgres
) -> None:
    await skip_other_tenants(postgres)
    tenant = eager.tenant()
    await tenant.prepare(1, **WHOLE, retention=Duration(seconds=60))
    kept, expired = await tenant.stage(text("a", "x")), await tenant.stage(text("a", "y"))
    await tenant.attach(expired.set_id)
    aged = "update sets set state_time = now() - interval '61 seconds' where state = 'ATTACHED'"
    async with eager.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(aged)

    async with (
        start_process("attachment-blob", eager.settings) as process,
        open_worker(process, eager.settings) as worker,
    ):
        await worker.work_once()

    (event,) = [
        one for one in await tenant.rows("audit_events") if one["subject"] == "attachment-blob-worker"
    ]
    assert event["resources"] == [f"set_id={expired.set_id}"]
    assert (event["caller_kind"], event["code"]) == ("service", "OK")
    assert event["method"].endswith("/CollectGarbage")
    assert await tenant.read(kept.set_id, "a") == b"x"
