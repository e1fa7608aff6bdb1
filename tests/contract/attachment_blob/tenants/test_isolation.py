"""The database isolates tenants by row-level security, and S3 by credentials for one bucket."""

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from minio.credentials.providers import AssumeRoleProvider
from minio.error import S3Error
from spawnmesh_attachment_blob.clients.role_chaining import can_chain
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain.uploads import StoredPart, UploadKey, UploadSpec
from spawnmesh_attachment_blob.store import uploads, usage
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.s3 import S3Endpoint

from tests.support.attachment_blob.fixtures import TABLES, BlobService, Tenant
from tests.support.attachment_blob.inline import text

SERVICE = Path(__file__).parents[4] / "services/attachment-blob/spawnmesh_attachment_blob"


async def test_each_table_is_keyed_by_tenant_and_has_row_level_security(blobs: BlobService) -> None:
    async with blobs.database.transaction("nobody-here") as connection:
        cursor = await connection.execute(
            """
            select c.relname, c.relrowsecurity and c.relforcerowsecurity as forced,
                (select a.attname from pg_index i
                 join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
                 where i.indrelid = c.oid and i.indisprimary) as leads
            from pg_class c
            where c.relnamespace = 'attachment_blob'::regnamespace and c.relkind = 'r'
                and c.relname !~ '^(_|yoyo)'
            """
        )
        found = {row["relname"]: (row["forced"], row["leads"]) for row in await cursor.fetchall()}

    assert found == dict.fromkeys(
        (
            *TABLES,
            "tenant_work",
            "purged_tenants",
            "audit_chains",
            "audit_events",
            "jobs",
            "operations",
        ),
        (True, "tenant_id"),
    )


async def test_a_select_without_where_sees_the_tenants_rows_only(tenant: Tenant, blobs: BlobService) -> None:
    other = blobs.tenant()
    await other.prepare()
    for owner in (tenant, other):
        await owner.stage(text("a", "same"))
        async with blobs.database.transaction(owner.tenant_id) as connection:
            spec = UploadSpec(new_id(IdKind.UPLOAD), "a", 1, "0" * 64, "")
            await uploads.insert_upload(connection, owner.tenant_id, spec, "", "key", 60)
            assert await usage.reserve_upload(connection, owner.tenant_id, spec.size_bytes)
            assert await uploads.take_over_upload(
                connection, owner.tenant_id, UploadKey("", spec.upload_id), 60
            )
            found = await uploads.get_upload(connection, owner.tenant_id, UploadKey("", spec.upload_id))
            assert found is not None
            assert await uploads.add_part(connection, owner.tenant_id, found, StoredPart(1, 1, "etag"), 60)

    for table in TABLES:
        for owner in (tenant, other):
            assert {row["tenant_id"] for row in await owner.rows(table)} == {owner.tenant_id}
        assert await blobs.tenant().rows(table) == []


def test_each_statement_names_the_tenant() -> None:
    for file in (SERVICE / "store").glob("*.sql"):
        for statement in file.read_text().split("-- name: ")[1:]:
            name, *lines = statement.splitlines()
            if name == "list_tenants":
                continue  # It reads ids alone, over all tenants.
            if all(
                line.startswith(("--", "set local ")) or not line for line in lines
            ):  # The statement changes only settings of the transaction.
                continue
            assert "%(tenant_id)s" in statement, name


async def test_the_same_bytes_are_stored_for_each_tenant(tenant: Tenant, blobs: BlobService) -> None:
    other = blobs.tenant()
    await other.prepare()
    mine, theirs = await tenant.stage(text("a", "same")), await other.stage(text("a", "same"))

    sha256 = mine.files[0].sha256
    assert sha256 == theirs.files[0].sha256
    assert tenant.object_keys() == [tenant.key_of(sha256)] != other.object_keys() == [other.key_of(sha256)]
    assert await tenant.release(mine.set_id) == 1
    assert await other.read(theirs.set_id, "a") == b"same"


async def test_a_tenants_client_is_refused_in_every_other_bucket(tenant: Tenant, blobs: BlobService) -> None:
    other = blobs.tenant()
    await other.prepare()
    theirs = await other.stage(text("a", "secret"))
    (key,) = other.object_keys()

    with http_pool(blobs.settings) as http:
        client = TenantBuckets(blobs.settings, http).client_for(tenant.tenant_id)
        client.put_object(tenant.bucket, "mine", io.BytesIO(b"x"), 1)
        attempts: list[Any] = [
            lambda: client.get_object(other.bucket, key),
            lambda: client.put_object(other.bucket, key, io.BytesIO(b"x"), 1),
            lambda: client.remove_object(other.bucket, key),
            lambda: list(client.list_objects(other.bucket)),
            lambda: client.make_bucket("spawnmesh-planted"),
            lambda: client.remove_bucket(tenant.bucket),
        ]
        for attempt in attempts:
            with pytest.raises(S3Error) as refusal:
                attempt()
            assert refusal.value.code == "AccessDenied"

    assert await other.read(theirs.set_id, "a") == b"secret"


async def test_a_tenants_credentials_get_no_further_ones(tenant: Tenant, blobs: BlobService) -> None:
    with http_pool(blobs.settings) as http:
        held = TenantBuckets(blobs.settings, http).credentials(tenant.tenant_id)
        assert can_chain(blobs.settings, http, held) is False


async def test_the_trust_of_the_role_alone_refuses_further_credentials(
    tenant: Tenant, blobs: BlobService, s3: S3Endpoint
) -> None:
    policy = {"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": ["*"]}
    with http_pool(blobs.settings) as http:
        held = AssumeRoleProvider(
            sts_endpoint=s3.sts_endpoint,
            access_key=s3.access_key,
            secret_key=s3.secret_key,
            region=s3.region,
            role_arn=s3.role_arn,
            role_session_name="test",
            policy=json.dumps({"Version": "2012-10-17", "Statement": [policy]}),
        ).retrieve()
        assert can_chain(blobs.settings, http, held) is False


async def test_credentials_are_cached_for_a_tenant_and_renewed_before_they_expire(
    tenant: Tenant, blobs: BlobService
) -> None:
    ahead = timedelta()
    with http_pool(blobs.settings) as http:
        buckets = TenantBuckets(blobs.settings, http, clock=lambda: utc_now() + ahead)
        provider = buckets.client_for(tenant.tenant_id)._provider
        assert provider is not None
        first = provider.retrieve()
        assert buckets.client_for(tenant.tenant_id)._provider is provider
        ahead = timedelta(minutes=54)
        assert provider.retrieve() is first
        ahead = timedelta(minutes=56)

        renewed = provider.retrieve()

        assert renewed.session_token != first.session_token
        assert not first.is_expired()


async def test_only_clients_of_recent_tenants_are_cached(blobs: BlobService) -> None:
    settings = blobs.settings.model_copy(update={"s3_max_cached_tenants": 2})
    with http_pool(settings) as http:
        buckets = TenantBuckets(settings, http)
        a, b = buckets.client_for("a1"), buckets.client_for("b1")
        assert buckets.client_for("a1") is a
        buckets.client_for("c1")

        assert buckets.client_for("a1") is a
        assert buckets.client_for("b1") is not b
