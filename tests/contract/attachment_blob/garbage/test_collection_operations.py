"""CollectGarbage: the operations with which operators of the mesh collect a tenant's garbage."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from google.longrunning.operations_pb2 import Operation
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.operations.v1 import operation_service_pb2 as operation_pb
from spawnmesh_attachment_blob.app import open_worker
from spawnmesh_attachment_blob.domain.garbage import GarbagePhase, GarbagePosition
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import Progress
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process

from tests.support.attachment_blob.fakes import waits_for_a_lock
from tests.support.attachment_blob.fixtures import BlobService, Tenant, key_of_hash, refused
from tests.support.attachment_blob.inline import text
from tests.support.serving import client_tokens
from tests.support.waiting import eventually

PAGE_ROWS = 200
_DUE = "update jobs set due_time = now() where kind = 'operation'"


def id_of(started: Operation) -> str:
    return started.name.rpartition("/")[2]


def metadata_of(operation: Operation) -> operation_pb.OperationMetadata:
    metadata = operation_pb.OperationMetadata()
    assert operation.metadata.Unpack(metadata)
    return metadata


async def get(tenant: Tenant, name: str, *, token: str = "") -> Operation:
    request = operation_pb.GetOperationRequest(name=name)
    found: Operation = await tenant.call_operations("GetOperation", request, token=token)
    return found


async def cancel(tenant: Tenant, name: str, *, token: str = "") -> None:
    request = operation_pb.CancelOperationRequest(name=name)
    await tenant.call_operations("CancelOperation", request, token=token)


async def listed(tenant: Tenant, name: str, *, token: str = "") -> list[str]:
    request = operation_pb.ListOperationsRequest(name=name)
    page = await tenant.call_operations("ListOperations", request, token=token)
    return [one.name for one in page.operations]


async def execute(tenant: Tenant, statement: str) -> None:
    """Execute a statement in the scope of the tenant."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(statement)


async def step_of(tenant: Tenant, started: Operation) -> int:
    found = await store.find(tenant.service.database, tenant.tenant_id, id_of(started))
    assert found is not None
    return found.step_count


@pytest.fixture
async def orphaned(eager: BlobService) -> Tenant:
    """A tenant with more orphaned objects than a page has, older than the grace period."""
    tenant = eager.tenant()
    await tenant.prepare()
    for number in range(PAGE_ROWS + 3):
        tenant.put(key_of_hash(f"{number:064x}"), b"x")
    return tenant


@pytest.fixture
async def holder(eager: BlobService) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection that can hold locks."""
    dsn = eager.settings.database_url
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield connection
        await connection.rollback()


async def test_CollectGarbage__counts_what_it_found(orphaned: Tenant) -> None:
    name = f"services/attachment-blob/tenants/{orphaned.tenant_id}/operations/"
    for dry_run in (True, False):
        started = await orphaned.start_collection(dry_run=dry_run)
        assert (started.done, started.name.startswith(name)) == (False, True)
        begun = metadata_of(started)
        assert (begun.method, begun.subject) == ("CollectGarbage", "operator")
        request = pb.CollectGarbageRequest()
        assert begun.request.Unpack(request)
        assert (request.tenant_id, request.dry_run) == (orphaned.tenant_id, dry_run)
        counts = await orphaned.result_of(started)
        assert counts == pb.GarbageCounts(seen_object_count=PAGE_ROWS + 3, orphan_object_count=PAGE_ROWS + 3)
        ended = metadata_of(await get(orphaned, started.name))
        assert (ended.done_count, ended.total_count) == (PAGE_ROWS + 3, 0)
        assert await step_of(orphaned, started) == len(GarbagePhase) + 1, "one of the phases has two pages"
    assert orphaned.object_keys() == []


async def test_CollectGarbage__a_repeat_is_the_same_operation(orphaned: Tenant) -> None:
    several = await asyncio.gather(*(orphaned.start_collection(request_id="once") for _ in range(3)))
    assert len({one.name for one in several}) == 1
    with refused(Reason.REQUEST_ID_REUSED):
        await orphaned.start_collection(request_id="once", dry_run=True)
    await orphaned.result_of(several[0])
    again = await orphaned.start_collection(request_id="once")
    assert (again.done, again) == (True, await get(orphaned, several[0].name))


async def test_CollectGarbage__two_at_once_remove_each_object_once(orphaned: Tenant) -> None:
    both = [await orphaned.start_collection() for _ in range(2)]
    counts = await asyncio.gather(*map(orphaned.result_of, both))
    assert all(one.orphan_object_count <= PAGE_ROWS + 3 for one in counts)
    assert sum(one.orphan_object_count for one in counts) >= PAGE_ROWS + 3
    assert orphaned.object_keys() == []


async def test_CollectGarbage__a_cancellation_keeps_what_was_done(orphaned: Tenant) -> None:
    started = await orphaned.start_collection()
    database = orphaned.service.database
    row = await store.find(database, orphaned.tenant_id, id_of(started))
    assert row is not None
    # A worker has done the first page of objects.
    partial = pb.CollectGarbageResponse(counts=pb.GarbageCounts(seen_object_count=PAGE_ROWS))
    position = GarbagePosition(GarbagePhase.OBJECTS, (key_of_hash(f"{PAGE_ROWS - 1:064x}"),))
    first = Progress(partial, str(position), PAGE_ROWS)
    assert await store.advance(database, orphaned.tenant_id, row, first)
    await cancel(orphaned, started.name)
    with refused(Reason.CANCELLED):
        await orphaned.result_of(started)
    metadata = metadata_of(await get(orphaned, started.name))
    assert metadata.partial_response.Unpack(partial)
    assert (metadata.done_count, partial.counts.seen_object_count) == (PAGE_ROWS, PAGE_ROWS)
    assert len(orphaned.object_keys()) == PAGE_ROWS + 3


async def test_CollectGarbage__goes_on_behind_the_recorded_page(orphaned: Tenant) -> None:
    started = await orphaned.start_collection()
    database = orphaned.service.database
    row = await store.find(database, orphaned.tenant_id, id_of(started))
    assert row is not None
    partial = pb.CollectGarbageResponse(counts=pb.GarbageCounts(seen_object_count=PAGE_ROWS))
    position = GarbagePosition(GarbagePhase.OBJECTS, (key_of_hash(f"{PAGE_ROWS - 1:064x}"),))
    first = Progress(partial, str(position), PAGE_ROWS)
    assert await store.advance(database, orphaned.tenant_id, row, first)
    counts = await orphaned.result_of(started)
    assert counts == pb.GarbageCounts(seen_object_count=PAGE_ROWS + 3, orphan_object_count=3)


async def test_CollectGarbage__goes_on_after_its_worker_was_killed(
    orphaned: Tenant, holder: psycopg.AsyncConnection[Any], postgres: Postgres
) -> None:
    staged = await orphaned.stage(text("a", "lost"))
    orphaned.lose(staged.files[0].sha256)
    settings = orphaned.service.settings
    own = {
        "DATABASE_URL": settings.database_url,
        "S3_ENDPOINT": settings.s3_endpoint,
        "S3_REGION": settings.s3_region,
        "S3_ACCESS_KEY": settings.s3_access_key.get_secret_value(),
        "S3_SECRET_KEY": settings.s3_secret_key.get_secret_value(),
        "STS_ENDPOINT": settings.sts_endpoint,
        "STS_ROLE_ARN": settings.sts_role_arn,
        "JWKS_FILE": str(settings.jwks_file),
        "SIGNING_KEY_FILE": str(settings.signing_key_file),
        "COLLECT_GRACE_SECONDS": str(settings.collect_grace_seconds),
        "COLLECT_INTERVAL_SECONDS": "1000000",
        "LOG_LEVEL": "error",
    }
    await execute(orphaned, "update tenant_work set collect_time = now()")
    # The step that marks the lost bytes waits for this row.
    await holder.execute("select set_config('spawnmesh.tenant', %s, false)", (orphaned.tenant_id,))
    await holder.execute("select from blobs for update")
    started = await orphaned.start_collection()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spawnmesh_attachment_blob", "worker"),
        env={"PATH": os.environ["PATH"], **{f"ATTACHMENT_BLOB_{name}": one for name, one in own.items()}},
    )
    try:
        await eventually(lambda: waits_for_a_lock(postgres))
    finally:
        process.kill()
        await process.wait()
    await holder.rollback()
    assert not (await get(orphaned, started.name)).done
    assert await step_of(orphaned, started) >= 5, "the phases before it are recorded"
    await execute(orphaned, _DUE)  # The claim would end after 30 s.
    counts = await orphaned.result_of(started)
    assert counts.missing_object_count == 1
    assert orphaned.object_keys() == []


async def test_CollectGarbage__waits_while_s3_is_away(orphaned: Tenant) -> None:
    started = await orphaned.start_collection()
    unreachable = orphaned.service.settings.model_copy(update={"s3_endpoint": "127.0.0.1:1"})
    async with (
        start_process("attachment-blob", unreachable) as process,
        open_worker(process, unreachable) as worker,
    ):
        await worker.jobs.run_due(store.JOB_KIND)
    waiting = await get(orphaned, started.name)
    assert (waiting.done, metadata_of(waiting).retry_reason) == (False, "DEPENDENCY_UNAVAILABLE")
    await execute(orphaned, _DUE)
    assert (await orphaned.result_of(started)).orphan_object_count == PAGE_ROWS + 3


async def test_CollectGarbage__a_purge_of_the_tenant_deletes_it(orphaned: Tenant) -> None:
    started = await orphaned.start_collection()
    while not (await orphaned.purge()).done:
        pass
    with refused(Reason.NOT_FOUND):
        await get(orphaned, started.name)
    assert await orphaned.rows("operations") == await orphaned.rows("jobs") == []
    with refused(Reason.NOT_FOUND):
        await orphaned.start_collection()
    await orphaned.service.jobs.run_due()


async def test_operations_of_operators_are_apart_from_those_of_the_tenant(
    tenant: Tenant, blobs: BlobService
) -> None:
    started = await tenant.start_collection(dry_run=True)
    minter = client_tokens(blobs.keys)
    client = minter.client_token(tenant.tenant_id, "someone", 300, role=ClientRole.OPERATOR)
    admin = minter.client_token(blobs.tenant().tenant_id, "admin", 300, role=ClientRole.ADMIN)
    parent = f"services/attachment-blob/tenants/{tenant.tenant_id}"
    as_of_the_tenant = f"services/attachment-blob/operations/{id_of(started)}"
    assert await listed(tenant, parent) == await listed(tenant, parent, token=admin) == [started.name]
    assert await get(tenant, started.name, token=admin) == await get(tenant, started.name)
    assert await listed(tenant, "services/attachment-blob", token=client) == []
    for token, name in ((client, started.name), (client, as_of_the_tenant), ("", as_of_the_tenant)):
        for call in (get, cancel):
            with refused(Reason.NOT_FOUND, id=name):
                await call(tenant, name, token=token)
    other = blobs.tenant()
    for wrong in (
        started.name.replace(tenant.tenant_id, other.tenant_id),
        f"{parent}/operations/{new_id(IdKind.OPERATION)}",
    ):
        with refused(Reason.NOT_FOUND):
            await get(tenant, wrong)
    for unknown in ("services/attachment-blob", "services/transcript", f"{parent}x"):
        token = client if unknown == parent else ""
        if unknown == f"{parent}x":
            assert await listed(tenant, unknown) == []
            continue
        with refused(Reason.NOT_FOUND):
            await listed(tenant, unknown, token=token)
    with refused(Reason.NOT_FOUND):
        await listed(tenant, parent, token=client)
    await cancel(tenant, started.name, token=admin)
    with refused(Reason.CANCELLED):
        await tenant.result_of(started)
    await tenant.call_operations(
        "DeleteOperation", operation_pb.DeleteOperationRequest(name=started.name), token=admin
    )
    assert await listed(tenant, parent) == []


async def test_CollectGarbage__is_for_operators_of_the_mesh(tenant: Tenant, blobs: BlobService) -> None:
    minter = client_tokens(blobs.keys)
    operator = minter.client_token(tenant.tenant_id, "someone", 300, role=ClientRole.OPERATOR)
    for token in (operator, tenant.service_token()):
        with refused(Reason.CALLER_NOT_ALLOWED), use_token(token):
            await tenant.start_collection(token=token)
    assert await tenant.rows("operations") == []
