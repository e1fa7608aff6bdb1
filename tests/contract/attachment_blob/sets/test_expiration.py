"""Sets that were never attached, and tombstones, are removed by age."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.store import garbage, sets, tenants
from spawnmesh_attachment_blob.store.garbage import BEFORE_ALL_TOMBSTONES
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row

from tests.support.attachment_blob.fakes import waits_for_a_lock
from tests.support.attachment_blob.fixtures import Tenant, new_set_id, open_stager, refused, repaired
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.payloads import got, put
from tests.support.attachment_blob.payloads import release as release_blob
from tests.support.attachment_blob.tombstones import page_of, states
from tests.support.waiting import eventually


async def age(tenant: Tenant, set_id: str, interval: str) -> None:
    """Move the time of the set's last state change back."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        statement = "update sets set state_time = now() - %s::interval where set_id = %s"
        assert (await connection.execute(statement, (interval, set_id))).rowcount == 1


async def test_a_set_that_was_never_attached_is_released_after_a_day(tenant: Tenant) -> None:
    """The session service lost the session's row, so no call attaches or releases the set."""
    abandoned, young, attached = [
        await tenant.stage(text("a", name)) for name in ("abandoned", "young", "attached")
    ]
    await tenant.attach(attached.set_id)
    payload, _ = await put(tenant, b"payload")  # A payload is never attached and does not expire.
    await age(tenant, young.set_id, "23 hours 59 minutes")
    for set_id in (abandoned.set_id, attached.set_id, payload):
        await age(tenant, set_id, "24 hours 1 second")

    await repaired(tenant, {"expired_set_count": 1})

    assert await tenant.left() == (3, 3, 3)
    with refused(Reason.ATTACHMENT_SET_STATE, state="RELEASED"):
        await tenant.attach(abandoned.set_id)
    assert (await tenant.get(young.set_id)).state == attachment_pb2.SET_STATE_STAGED
    assert await tenant.read(attached.set_id, "a") == b"attached"
    assert await got(tenant, payload) == b"payload"


async def test_a_set_that_is_attached_just_before_its_expiration_is_kept(
    tenant: Tenant, postgres: Postgres
) -> None:
    staged = await tenant.stage(text("a", "x"))
    await age(tenant, staged.set_id, "2 days")
    async with open_dependencies(tenant.service.settings) as on:
        async with tenant.service.database.transaction(tenant.tenant_id) as connection:
            attached = {"tenant_id": tenant.tenant_id, "set_id": staged.set_id}
            await connection.execute(sets.ATTACH_SET, attached)
            collecting = asyncio.ensure_future(on.collector.collect(tenant.tenant_id, dry_run=False))
            await eventually(lambda: waits_for_a_lock(postgres))
        await collecting

    assert (await tenant.get(staged.set_id)).state == attachment_pb2.SET_STATE_ATTACHED
    assert await tenant.read(staged.set_id, "a") == b"x"


async def test_tombstones_are_kept_for_thirty_days_and_then_deleted(tenant: Tenant) -> None:
    old, young = await tenant.stage(text("a", "x")), await tenant.stage(text("a", "y"))
    never_staged, kept = new_set_id(), await tenant.stage(text("a", "z"))
    payload, _ = await put(tenant, b"payload")
    for set_id in (old.set_id, young.set_id, never_staged):
        await tenant.release(set_id)
    await release_blob(tenant, payload)
    await age(tenant, young.set_id, "29 days 23 hours")
    for set_id in (old.set_id, never_staged, payload):
        await age(tenant, set_id, "30 days 1 second")
    await tenant.attach(kept.set_id)
    await age(tenant, kept.set_id, "99 days")
    before = await states(tenant)
    for set_id in (old.set_id, never_staged):
        with refused(Reason.ATTACHMENT_SET_STATE, state="RELEASED"):
            await tenant.stage(text("a", "x"), set_id=set_id)
        assert await tenant.release(set_id) == 0  # A repeated release does not renew the tombstone.

    async with open_dependencies(tenant.service.settings) as on:
        for dry_run, are_left in (
            (True, before),
            (False, {young.set_id: "RELEASED", kept.set_id: "ATTACHED"}),
        ):
            counts = await on.collector.collect(tenant.tenant_id, dry_run=dry_run)
            assert counts.forgotten_set_count == 3
            assert await states(tenant) == are_left
    assert await tenant.collect() == {}
    with refused(Reason.NOT_FOUND):
        await tenant.get(old.set_id)
    with refused(Reason.ATTACHMENT_SET_STATE):
        await tenant.stage(text("a", "y"), set_id=young.set_id)
    # The release succeeds and creates a new tombstone.
    assert await tenant.release(old.set_id) == 0
    assert (await states(tenant))[old.set_id] == "RELEASED"


async def test_a_tombstone_with_leftover_files_is_deleted_after_them(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            "update sets set state = 'RELEASED', state_time = now() - interval '40 days'"
        )

    async with open_dependencies(tenant.service.settings) as on:
        tombstones = await page_of(on.database, tenant)
        assert [(each.set_id, each.has_files) for each in tombstones] == [(staged.set_id, True)]
        async with on.database.transaction(tenant.tenant_id) as connection:
            gone = await garbage.delete_tombstones(
                connection, tenant.tenant_id, BEFORE_ALL_TOMBSTONES, tombstones
            )
    assert gone == 0

    assert await tenant.collect() == {"unremoved_set_count": 1, "forgotten_set_count": 1}
    assert await tenant.rows("sets") == []
    assert await tenant.left() == (0, 0, 0)


class Forgetful(Database):
    """Calls a function once between the staging statement and the next one."""

    def __init__(self, database: Database, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(database.connections)
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, *call: Any
    ) -> AsyncIterator[tuple[Connection, list[list[Row]]]]:
        async with super().transaction_with_statements(tenant_id, *call) as begun:
            meanwhile, self._meanwhile = self._meanwhile, None
            if meanwhile is not None:
                await meanwhile()
            yield begun


async def test_a_set_is_staged_while_its_tombstone_is_deleted(tenant: Tenant) -> None:
    set_id, session_id = new_set_id(), new_id(IdKind.SESSION)
    await tenant.release(set_id)
    await age(tenant, set_id, "31 days")
    request = SetRequest(set_id, session_id, [InlineItem("a", "x", Encoding.UTF8)])
    database = Forgetful(tenant.service.database, tenant.collect)
    async with open_stager(tenant.service, database=database) as (stager, _):
        stager._limits.put(tenant.tenant_id, (await tenant_limits(tenant)))
        await stager.stage_set(tenant.tenant_id, request)

    assert await tenant.read(set_id, "a") == b"x"


async def tenant_limits(tenant: Tenant) -> Any:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        found = await tenants.get_tenant(connection, tenant.tenant_id)
    assert found is not None
    return found.policy.limits
