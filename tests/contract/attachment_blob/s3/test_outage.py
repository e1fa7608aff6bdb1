"""S3 stops and comes back."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_postgres.database import Database

from tests.support.attachment_blob.fixtures import Tenant, new_set_id, open_blob_service, refused
from tests.support.attachment_blob.inline import text
from tests.support.captured_logs import captured_warnings
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
async def own_s3(tmp_path_factory: pytest.TempPathFactory, watchdog: Watchdog) -> AsyncIterator[S3Server]:
    """An S3 server that a test may stop without harm to other tests."""
    root = tmp_path_factory.mktemp("own-s3")
    async with S3Server(root / "data", root / "log", watchdog, lambda line: None) as server:
        yield server


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], own_s3: S3Server, keys: Path) -> AsyncIterator[Tenant]:
    """A tenant of a service on the S3 server that may be stopped."""
    async with open_blob_service(databases["attachment_blob"], own_s3.endpoint, keys) as service:
        tenant = service.tenant()
        await tenant.prepare()
        yield tenant


async def test_calls_that_need_S3_are_refused_before_their_deadline_and_leave_nothing(
    tenant: Tenant, own_s3: S3Server
) -> None:
    kept = await tenant.stage(text("a", "kept"))
    set_id = new_set_id()
    await own_s3.stop()

    try:
        for attempt in (
            lambda: tenant.stage(text("a", "new"), text("b", "kept"), set_id=set_id),
            lambda: tenant.read(kept.set_id, "a"),
            lambda: tenant.prepare(2),
            lambda: tenant.service.tenant().prepare(),
        ):
            with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3") as errors:
                await attempt()
            assert own_s3.endpoint.endpoint not in str(errors[0]) + str(errors[0].facts)
        assert await tenant.get(kept.set_id) == kept
        assert (await tenant.attach(kept.set_id)).files == kept.files
        # A released set cannot be read, whether or not its release was refused.
        with refused(Reason.DEPENDENCY_UNAVAILABLE):
            await tenant.release(kept.set_id)
        with refused(Reason.ATTACHMENT_SET_STATE):
            await tenant.read(kept.set_id, "a")
    finally:
        await own_s3.start()

    assert await tenant.left() == (1, 1, 1)
    assert [row["set_id"] for row in await tenant.rows("sets")] == [kept.set_id]
    assert await tenant.release(kept.set_id) == 1
    assert await tenant.left() == (0, 0, 0)
    assert (await tenant.stage(text("a", "new"), set_id=set_id)).total_bytes == 3


async def _has_open_transaction(database: Database, tenant_id: str) -> bool:
    """Return whether a transaction of the service is open and waits for something else."""
    async with database.transaction(tenant_id) as connection:
        found = await connection.execute(
            "select from pg_stat_activity where usename = current_user and state = 'idle in transaction'"
        )
        return await found.fetchone() is not None


async def test_calls_to_a_silent_S3_time_out_and_do_not_block_calls_that_need_only_rows(
    databases: dict[str, ServiceDsn], own_s3: S3Server, keys: Path
) -> None:
    impatient = {"database_max_connections": 2, "s3_read_timeout_seconds": 2.0, "collect_grace_seconds": 0}
    async with open_blob_service(databases["attachment_blob"], own_s3.endpoint, keys, **impatient) as service:
        tenant = service.tenant()
        await tenant.prepare()
        kept = await tenant.stage(text("a", "kept"))
        set_ids = [new_set_id() for _ in range(2)]
        for process in own_s3.processes:
            process.pause()
        try:
            with captured_warnings() as logged:
                stages = [
                    asyncio.ensure_future(tenant.stage(text("a", set_id), set_id=set_id))
                    for set_id in set_ids
                ]
                await eventually(partial(_has_open_transaction, service.database, tenant.tenant_id))
                for _ in range(3):  # If each stage had a connection, these calls would wait for a stage.
                    assert await tenant.get(kept.set_id) == kept
                assert not any(stage.done() for stage in stages)
                results = await asyncio.gather(*stages, return_exceptions=True)
            assert "s3_call_failed" in {line["event"] for line in logged}
            for result in results:
                assert isinstance(result, MeshError)
                assert result.reason is Reason.DEPENDENCY_UNAVAILABLE
            await eventually(lambda: refused_unsent(tenant))
            assert all([await refused_unsent(tenant) for _ in range(20)])
        finally:
            for process in own_s3.processes:
                process.resume()

        assert [row["set_id"] for row in await tenant.rows("sets")] == [kept.set_id]

        async def is_collected() -> bool:
            """The result of those puts is unknown. S3 may execute some of them later."""
            try:
                await tenant.collect()
            except MeshError:  # S3 has not answered yet.
                return False
            return await tenant.left() == (1, 1, 1)

        await eventually(is_collected)


async def test_put_that_waits_for_a_silent_S3_is_left(
    databases: dict[str, ServiceDsn], own_s3: S3Server, keys: Path
) -> None:
    """Its time-out is longer than the test may take."""
    patient = {"s3_read_timeout_seconds": 300.0}
    async with open_blob_service(databases["attachment_blob"], own_s3.endpoint, keys, **patient) as service:
        tenant = service.tenant()
        await tenant.prepare()
        await tenant.stage(text("a", "before"))
        set_id = new_set_id()
        for process in own_s3.processes:
            process.pause()
        try:
            with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
                await tenant.stage(text("a", "left"), set_id=set_id, timeout_seconds=200.0)
        finally:
            for process in own_s3.processes:
                process.resume()

        async def is_staged() -> bool:
            try:
                await tenant.stage(text("a", "left"), set_id=set_id)
            except MeshError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
                return False
            return True

        await eventually(is_staged)


async def refused_unsent(tenant: Tenant) -> bool:
    """Return whether a set is refused without a call of S3."""
    return "s3_call_failed" not in await refusal_events(tenant)


async def refusal_events(tenant: Tenant) -> set[str]:
    """Stage a set, which is refused, and return the names of the events logged meanwhile."""
    with captured_warnings() as logged, refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
        await tenant.stage(text("a", new_set_id()))
    return {line["event"] for line in logged}
