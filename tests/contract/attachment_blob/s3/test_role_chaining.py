"""A store whose role trusts everybody: the policy of a tenant's credentials alone keeps them from
others' buckets.
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import AssumeRoleProvider
from spawnmesh_attachment_blob.clients.role_chaining import can_chain
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_devstack.s3 import S3Endpoint, S3Server
from spawnmesh_devstack.watchdog import Watchdog


@pytest.fixture
async def trusting(tmp_path: Path, watchdog: Watchdog) -> AsyncIterator[S3Endpoint]:
    """Return a store whose role can be assumed with every credentials."""
    data = tmp_path / "data"
    async with S3Server(data, tmp_path / "log", watchdog, lambda line: None) as server:
        configuration = json.loads((data / "iam.json").read_text())
        (statement,) = configuration["roles"][0]["trustPolicy"]["Statement"]
        statement["Principal"] = "*"
        (data / "iam.json").write_text(json.dumps(configuration))
        await server.stop()
        await server.start()
        yield server.endpoint


@pytest.fixture
def settings(trusting: S3Endpoint) -> AttachmentBlobSettings:
    return AttachmentBlobSettings(
        database_url="postgresql://",
        s3_endpoint=trusting.endpoint,
        s3_access_key=trusting.access_key,
        s3_secret_key=trusting.secret_key,
        sts_endpoint=trusting.sts_endpoint,
        sts_role_arn=trusting.role_arn,
    )


@pytest.fixture
def http(settings: AttachmentBlobSettings) -> Iterator[urllib3.PoolManager]:
    with http_pool(settings) as pool:
        yield pool


def without_refusal(s3: S3Endpoint) -> Credentials:
    """Return credentials for a bucket, whose policy does not deny STS."""
    allow = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::bucket/*"]}
    return AssumeRoleProvider(
        sts_endpoint=s3.sts_endpoint,
        access_key=s3.access_key,
        secret_key=s3.secret_key,
        region=s3.region,
        role_arn=s3.role_arn,
        role_session_name="test",
        policy=json.dumps({"Version": "2012-10-17", "Statement": [allow]}),
    ).retrieve()


def test_a_tenants_policy_denies_sts(
    trusting: S3Endpoint, settings: AttachmentBlobSettings, http: urllib3.PoolManager
) -> None:
    Minio(trusting.endpoint, trusting.access_key, trusting.secret_key, secure=False).make_bucket("bucket")
    assert can_chain(settings, http, without_refusal(trusting)), "this store lets others chain"
    assert not can_chain(settings, http, TenantBuckets(settings, http).credentials("tenant"))
