"""PurgeTenant that comes late leaves the tenant alone that was created anew."""

import asyncio
from typing import Any

import pytest
from psycopg import AsyncConnection
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_transcript import tenant_store, tenants

from tests.contract.test_transcript_deletion import rows_of
from tests.contract.transcript_fixtures import Service, refused, service, session, superuser, user

__all__ = ["service", "session", "superuser"]

Superuser = AsyncConnection[tuple[Any, ...]]


async def test_PurgeTenant__of_the_tenant_before_leaves_the_one_that_was_created_anew(
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


async def test_PurgeTenant__that_was_cut_off_gives_way_to_the_tenant_that_is_created_anew(
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


async def test_PurgeTenant__nobody_says_of_which_tenant_is_waited_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As replicas of the release before ask: settings of any version may be those of the tenant that goes."""
    session = service.session()
    monkeypatch.setattr(tenants, "_PAGES_PER_CALL", 0)
    assert not (await session.purge_tenant()).done
    with refused(Reason.CONFLICT):
        await session.prepare_tenant(9)
    monkeypatch.undo()
    assert (await session.purge_tenant()).done
    assert await session.prepare_tenant(1) == 1


@pytest.mark.parametrize("version", [0, 3])
async def test_PurgeTenant__stops_where_the_tenant_is_created_anew_meanwhile(
    service: Service, superuser: Superuser, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Two calls at once, of which one is held up before a page."""
    old = service.session()
    await old.prepare_tenant(3)
    await old.create()
    await old.append([user("old")])
    lock_purge, reached, go_on = tenant_store.lock_purge, asyncio.Event(), asyncio.Event()

    async def held_up(connection: Connection, tenant_id: str, settings_version: int) -> bool:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await lock_purge(connection, tenant_id, settings_version)

    monkeypatch.setattr(tenant_store, "lock_purge", held_up)
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
