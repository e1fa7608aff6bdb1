"""`python -m spawnmesh_attachment_blob check` tests the isolation of tenants."""

from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.storage_check import CheckResult, check_storage
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_devstack.s3 import S3Endpoint

PREFIX = "checked-"


class Unscoped(TenantBuckets):
    """Ignores session policies, as some STS do: a tenant's client has the rights of the service."""

    def client_for(self, tenant_id: str) -> Minio:
        return self._client(self._own)


class Chainable(TenantBuckets):
    """Holds credentials for a tenant that STS lets assume the role again, as one without a check of
    the caller does.
    """

    def credentials(self, tenant_id: str) -> Credentials:
        return Credentials(
            self._settings.s3_access_key.get_secret_value(), self._settings.s3_secret_key.get_secret_value()
        )


def settings_for(s3: S3Endpoint, **other: Any) -> AttachmentBlobSettings:
    return AttachmentBlobSettings(
        **{
            "database_url": "postgresql://",
            "s3_endpoint": s3.endpoint,
            "s3_access_key": s3.access_key,
            "s3_secret_key": s3.secret_key,
            "sts_endpoint": s3.sts_endpoint,
            "sts_role_arn": s3.role_arn,
            "bucket_prefix": PREFIX,
            **other,
        }
    )


@pytest.fixture
def http(s3: S3Endpoint) -> Iterator[urllib3.PoolManager]:
    with http_pool(settings_for(s3)) as pool:
        yield pool


def left_behind(s3: S3Endpoint) -> list[str]:
    client = Minio(s3.endpoint, s3.access_key, s3.secret_key, secure=False, region=s3.region)
    return [bucket.name for bucket in client.list_buckets() if bucket.name.startswith(PREFIX)]


def test_sound_storage_passes_each_check_and_keeps_nothing(s3: S3Endpoint, http: urllib3.PoolManager) -> None:
    settings = settings_for(s3)
    checked = list(check_storage(settings, http, TenantBuckets(settings, http)))
    assert [one.advice for one in checked] == [""] * 6
    assert [one.step for one in checked[-2:]] == [
        "be refused in another tenant's bucket",
        "be refused by STS",
    ]
    assert left_behind(s3) == []


def test_credentials_for_another_tenants_bucket_are_detected(
    s3: S3Endpoint, http: urllib3.PoolManager
) -> None:
    settings = settings_for(s3)
    *fine, last = check_storage(settings, http, Unscoped(settings, http))
    assert [one.advice for one in fine] == [""] * 4
    assert last.advice.startswith("TENANTS ARE NOT ISOLATED")


def test_credentials_that_get_further_ones_are_detected(s3: S3Endpoint, http: urllib3.PoolManager) -> None:
    settings = settings_for(s3)
    *fine, last = check_storage(settings, http, Chainable(settings, http))
    assert [one.advice for one in fine] == [""] * 5
    assert last.step == "be refused by STS"
    assert last.advice.startswith("TENANTS ARE NOT ISOLATED")
    assert left_behind(s3) == []


@pytest.mark.parametrize(
    ("wrong", "step", "advised"),
    [
        ({"s3_secret_key": "another-key-altogether"}, "create a bucket", "s3_endpoint"),
        ({"s3_endpoint": "127.0.0.1:1"}, "create a bucket", "s3_endpoint"),
        ({"sts_role_arn": "arn:aws:iam::role/Nobody"}, "get a tenant's credentials", "sts_role_arn"),
        ({"sts_endpoint": "http://127.0.0.1:1"}, "get a tenant's credentials", "sts_endpoint"),
    ],
)
def test_first_failure_is_reported_with_advice(
    s3: S3Endpoint, http: urllib3.PoolManager, wrong: dict[str, str], step: str, advised: str
) -> None:
    settings = settings_for(s3, **wrong)
    last: CheckResult = list(check_storage(settings, http, TenantBuckets(settings, http)))[-1]
    assert last.step == step
    assert advised in last.advice
    assert not any(value in last.advice for value in wrong.values())
    assert left_behind(s3) == []
