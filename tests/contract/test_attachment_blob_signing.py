"""Requests that are signed while the database works: made once, in time, good for what they are used for, and never kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from minio.credentials.credentials import Credentials
from psycopg.rows import DictRow
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.s3_calls import S3Calls
from spawnmesh_attachment_blob.s3_puts import Put, SignedPut
from spawnmesh_attachment_blob.staging import SetRequest, Staging
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from tests.contract.attachment_blob_fixtures import Tenant, blobs, new_set_id, open_staging, tenant

__all__ = ["blobs", "tenant"]


class CountedCalls(S3Calls):
    """Says how many requests were signed."""

    def __init__(self, calls: S3Calls) -> None:
        self.__dict__.update(calls.__dict__)
        self.signed_count = 0

    def signed(self, put: Put, credentials: Credentials) -> SignedPut:
        self.signed_count += 1
        return super().signed(put, credentials)


class CountingStore(ObjectStore):
    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self.calls = CountedCalls(calls)
        super().__init__(buckets, self.calls)


class SlowDatabase(Database):
    """Answers when so many requests are signed, or says that they never were."""

    waits_for = 0
    store: CountingStore

    def __init__(self, database: Database) -> None:
        self.__dict__.update(database.__dict__)

    @asynccontextmanager
    async def transaction_of(self, tenant_id: str, *call: Any) -> AsyncIterator[tuple[Connection, list[DictRow]]]:
        async with super().transaction_of(tenant_id, *call) as begun:
            async with asyncio.timeout(5):
                while self.store.calls.signed_count < self.waits_for:
                    await asyncio.sleep(0.001)
            yield begun


def request(*contents: str) -> SetRequest:
    items = [InlineItem(f"{index}.txt", content, Encoding.UTF8) for index, content in enumerate(contents)]
    return SetRequest(new_set_id(), new_id(IdKind.SESSION), items)


@asynccontextmanager
async def slow_staging(tenant: Tenant) -> AsyncIterator[tuple[Staging, SlowDatabase]]:
    """Staged once before: then the credentials are at hand."""
    database = SlowDatabase(tenant.service.database)
    async with open_staging(tenant.service, CountingStore, database) as (staging, store):
        database.store = store
        await staging.stage(tenant.tenant_id, request("first"))
        store.calls.signed_count = 0
        yield staging, database


async def test_each_request_is_signed_once_and_before_the_database_has_answered(tenant: Tenant) -> None:
    async with slow_staging(tenant) as (staging, database):
        database.waits_for = 3
        staged = await staging.stage(tenant.tenant_id, request("a", "b", "c"))

        assert database.store.calls.signed_count == 3
    assert [await tenant.read(staged.set_id, f"{number}.txt") for number in range(3)] == [b"a", b"b", b"c"]


async def test_what_was_signed_and_is_not_put_is_not_kept(tenant: Tenant) -> None:
    async with slow_staging(tenant) as (staging, database):
        database.waits_for = 1
        known = await staging.stage(tenant.tenant_id, request("first"))
        other = request("another")
        with pytest.raises(MeshError) as refusal:
            await staging.stage(tenant.tenant_id, SetRequest(known.set_id, other.session_id, other.items))

        assert refusal.value.reason is Reason.ALREADY_EXISTS
        assert database.store.calls.signed_count == 2
        assert database.store._signed == {}
    assert await tenant.left() == (2, 1, 1)


async def test_request_signed_with_credentials_that_do_not_hold_any_more_is_signed_anew(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_staging(tenant) as (staging, database):
        database.waits_for = 1
        buckets = database.store._buckets
        stale = [Credentials("AKIASTALE", "stale", "stale")]
        fresh = buckets.credentials_at_hand
        monkeypatch.setattr(
            buckets, "credentials_at_hand", lambda tenant_id: stale.pop() if stale else fresh(tenant_id)
        )
        staged = await staging.stage(tenant.tenant_id, request("anew"))

        assert database.store.calls.signed_count == 2
    assert await tenant.read(staged.set_id, "0.txt") == b"anew"
