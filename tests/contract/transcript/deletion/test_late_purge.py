"""A late PurgeTenant does not affect a tenant that was created again."""

import asyncio

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_transcript.rpc import purge_tenant as tenants
from spawnmesh_transcript.store import purges as purge_store

from tests.support.transcript.fixtures import Service, refused, user
from tests.support.transcript.tables import Superuser, rows_of


async def test_PurgeTenant__a_purge_of_the_earlier_tenant_leaves_the_new_one(
    service: Service, superuser: Superuser
) -> None:
    old = service.session()
    assert await old.prepare_tenant(3) == 3
    await old.create()
    await old.append([user("old")])
    first = await old.purge_tenant(3)
    assert (first.done, first.deleted_transcript_count) == (True, 1)
    assert await rows_of(superuser, old.tenant_id) == {}

    new = old.sibling()
    assert await new.prepare_tenant(4, mask_secrets=True) == 4
    await new.create()
    await new.append([user("new")])
    kept = await rows_of(superuser, old.tenant_id)
    for late in (1, 3):
        answer = await old.purge_tenant(late)
        assert (answer.done, answer.deleted_row_count) == (True, 0)
    assert await rows_of(superuser, old.tenant_id) == kept
    await new.append([user("more")])
    assert await new.prepare_tenant(1) == 4
    assert (await new.purge_tenant(4)).deleted_transcript_count == 1
    assert await rows_of(superuser, old.tenant_id) == {}


async def test_PurgeTenant__an_interrupted_purge_yields_to_the_new_tenant(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = service.session()
    monkeypatch.setattr(tenants, "_PAGES_PER_CALL", 0)
    assert not (await session.purge_tenant(3)).done
    for stale in (2, 3):
        with refused(Reason.CONFLICT):
            await session.prepare_tenant(stale)
    assert await session.prepare_tenant(4, mask_secrets=True) == 4
    await session.create()
    assert (await session.purge_tenant(3)).done
    await session.append([user("new")])


async def test_PurgeTenant__a_purge_without_a_version_must_finish_first(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version, settings of any version may belong to the purged tenant."""
    session = service.session()
    monkeypatch.setattr(tenants, "_PAGES_PER_CALL", 0)
    assert not (await session.purge_tenant()).done
    with refused(Reason.CONFLICT):
        await session.prepare_tenant(9)
    monkeypatch.undo()
    assert (await session.purge_tenant()).done
    assert await session.prepare_tenant(1) == 1


@pytest.mark.parametrize("version", [0, 3])
async def test_PurgeTenant__stops_if_the_tenant_is_created_again_meanwhile(
    service: Service, superuser: Superuser, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Two calls run at once, and one of them stops before a page."""
    old = service.session()
    await old.prepare_tenant(3)
    await old.create()
    await old.append([user("old")])
    lock_purge, reached, go_on = purge_store.lock_purge, asyncio.Event(), asyncio.Event()

    async def held_up(connection: Connection, tenant_id: str, settings_version: int) -> bool:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await lock_purge(connection, tenant_id, settings_version)

    monkeypatch.setattr(purge_store, "lock_purge", held_up)
    late = asyncio.create_task(old.purge_tenant(version))
    await asyncio.wait_for(reached.wait(), 20)
    while not (await old.purge_tenant(version)).done:
        pass
    new = old.sibling()
    await new.prepare_tenant(4, mask_secrets=True)
    await new.create()
    await new.append([user("new")])
    kept = await rows_of(superuser, old.tenant_id)
    go_on.set()
    answer = await late
    assert (answer.done, answer.deleted_row_count) == (True, 0)
    assert await rows_of(superuser, old.tenant_id) == kept
    await new.append([user("more")])
