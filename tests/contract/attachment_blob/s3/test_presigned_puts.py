"""Puts are signed while the database works: once, in time, with valid credentials, and not kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from minio.credentials.credentials import Credentials
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.clients.s3_puts import Put, SignedPut
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.operations.set_stager import SetStager
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row

from tests.support.attachment_blob.fixtures import Tenant, new_set_id, open_stager


class CountedCalls(S3Calls):
    """Counts signed requests."""

    def __init__(self, calls: S3Calls) -> None:
        self.__dict__.update(calls.__dict__)
        self.signed_count = 0

    def sign(self, put: Put, credentials: Credentials) -> SignedPut:
        self.signed_count += 1
        return super().sign(put, credentials)


class CountingStore(ObjectStore):
    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self.calls = CountedCalls(calls)
        super().__init__(buckets, self.calls)


class SlowDatabase(Database):
    """Returns once so many requests are signed, or fails after 5 seconds."""

    waits_for = 0
    store: CountingStore

    def __init__(self, database: Database) -> None:
        self.__dict__.update(database.__dict__)

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, *call: Any
    ) -> AsyncIterator[tuple[Connection, list[list[Row]]]]:
        async with super().transaction_with_statements(tenant_id, *call) as begun:
            async with asyncio.timeout(60):
                while self.store.calls.signed_count < self.waits_for:
                    await asyncio.sleep(0.001)
            yield begun


def request(*contents: str) -> SetRequest:
    items = [InlineItem(f"{index}.txt", content, Encoding.UTF8) for index, content in enumerate(contents)]
    return SetRequest(new_set_id(), new_id(IdKind.SESSION), items)


@asynccontextmanager
async def slow_stager(tenant: Tenant) -> AsyncIterator[tuple[SetStager, SlowDatabase]]:
    """Stage a set first, so that the credentials are cached."""
    database = SlowDatabase(tenant.service.database)
    async with open_stager(tenant.service, CountingStore, database) as (stager, store):
        database.store = store
        await stager.stage_set(tenant.tenant_id, request("first"))
        store.calls.signed_count = 0
        yield stager, database


async def test_each_put_is_signed_once_before_the_database_responds(tenant: Tenant) -> None:
    async with slow_stager(tenant) as (stager, database):
        database.waits_for = 3
        staged = await stager.stage_set(tenant.tenant_id, request("a", "b", "c"))

        assert database.store.calls.signed_count == 3
    assert [await tenant.read(staged.set_id, f"{number}.txt") for number in range(3)] == [b"a", b"b", b"c"]


async def test_unused_signed_puts_are_discarded(tenant: Tenant) -> None:
    async with slow_stager(tenant) as (stager, database):
        database.waits_for = 1
        known = await stager.stage_set(tenant.tenant_id, request("first"))
        other = request("another")
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, SetRequest(known.set_id, other.session_id, other.items))

        assert refusal.value.reason is Reason.ALREADY_EXISTS
        assert database.store.calls.signed_count == 2
        assert database.store._signed == {}
    assert await tenant.left() == (2, 1, 1)


async def test_a_put_signed_with_expired_credentials_is_signed_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_stager(tenant) as (stager, database):
        database.waits_for = 1
        buckets = database.store._buckets
        stale = [Credentials("AKIASTALE", "stale", "stale")]
        fresh = buckets.cached_credentials
        monkeypatch.setattr(
            buckets, "cached_credentials", lambda tenant_id: stale.pop() if stale else fresh(tenant_id)
        )
        staged = await stager.stage_set(tenant.tenant_id, request("anew"))

        assert database.store.calls.signed_count == 2
    assert await tenant.read(staged.set_id, "0.txt") == b"anew"
