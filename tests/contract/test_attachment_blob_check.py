"""`python -m spawnmesh_attachment_blob check`: what tenants' isolation stands on is tried out."""

from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from minio import Minio
from spawnmesh_attachment_blob.check import Checked, check_storage
from spawnmesh_attachment_blob.s3_calls import http_pool
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_devstack.s3 import S3Endpoint

PREFIX = "checked-"


class Unscoped(TenantBuckets):
    """As with an STS that does not heed session policies: a tenant's client may do what the service's own keys may."""

    def client_for(self, tenant_id: str) -> Minio:
        return self._client(None)


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


def test_sound_storage_stands_every_check_and_keeps_nothing(s3: S3Endpoint, http: urllib3.PoolManager) -> None:
    settings = settings_for(s3)
    checked = list(check_storage(settings, TenantBuckets(settings, http)))
    assert [one.advice for one in checked] == [""] * 5
    assert checked[-1].what == "be refused in another tenant's bucket"
    assert left_behind(s3) == []


def test_credentials_that_open_another_tenants_bucket_are_found_out(s3: S3Endpoint, http: urllib3.PoolManager) -> None:
    settings = settings_for(s3)
    *fine, last = check_storage(settings, Unscoped(settings, http))
    assert [one.advice for one in fine] == [""] * 4
    assert last.advice.startswith("TENANTS ARE NOT ISOLATED")


@pytest.mark.parametrize(
    ("wrong", "what", "advised"),
    [
        ({"s3_secret_key": "another-key-altogether"}, "make a bucket", "s3_endpoint"),
        ({"s3_endpoint": "127.0.0.1:1"}, "make a bucket", "s3_endpoint"),
        ({"sts_role_arn": "arn:aws:iam::role/Nobody"}, "take a tenant's credentials", "sts_role_arn"),
        ({"sts_endpoint": "http://127.0.0.1:1"}, "take a tenant's credentials", "sts_endpoint"),
    ],
)
def test_first_thing_that_is_wrong_is_told_with_what_to_look_at(
    s3: S3Endpoint, http: urllib3.PoolManager, wrong: dict[str, str], what: str, advised: str
) -> None:
    settings = settings_for(s3, **wrong)
    last: Checked = list(check_storage(settings, TenantBuckets(settings, http)))[-1]
    assert last.what == what
    assert advised in last.advice
    assert not any(value in last.advice for value in wrong.values())
    assert left_behind(s3) == []
