"""Whether S3 and STS do what tenants' isolation stands on: `python -m spawnmesh_attachment_blob check`. Synchronous."""

import io
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from minio import Minio
from minio.error import S3Error

from spawnmesh_attachment_blob.bucket_credentials import S3_FAILURES
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets

_OBJECT = "check"
_REFUSED = ("AccessDenied", "AllAccessDisabled")


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was tried; `advice` is empty where it went well."""

    what: str
    advice: str = ""


def check_storage(settings: AttachmentBlobSettings, buckets: TenantBuckets) -> Iterator[Checked]:
    """Makes two buckets, tries from one tenant's credentials what they must and must not do, and removes the buckets.

    Ends at the first thing that does not go well: what comes after stands on it.
    """
    own, other = (f"check-{secrets.token_hex(4)}" for _ in range(2))
    made: list[str] = []
    try:
        for checked in _checked(settings, buckets, own, other, made):
            yield checked
            if checked.advice:
                return
    finally:
        for tenant in made:
            _attempt(partial(buckets.remove_bucket, tenant))


def _checked(
    settings: AttachmentBlobSettings, buckets: TenantBuckets, own: str, other: str, made: list[str]
) -> Iterator[Checked]:
    for tenant in (own, other):
        failed = _attempt(partial(buckets.make_bucket, tenant))
        yield Checked(
            "make a bucket", failed and f"{failed}: look at s3_endpoint, the keys, and their right to make buckets"
        )
        made.append(tenant)
    failed = _attempt(partial(buckets.credentials, own))
    yield Checked(
        "take a tenant's credentials", failed and f"{failed}: look at sts_endpoint, sts_role_arn and the role's trust"
    )
    client = buckets.client_for(own)
    failed = _attempt(partial(_put_and_get, client, buckets.bucket_of(own), buckets.encryption_of(own)))
    yield Checked(
        "write, read and delete in the own bucket",
        failed and f"{failed}: the role lacks a right, or s3_encryption {settings.s3_encryption} is not to be had",
    )
    stranger = buckets.bucket_of(other)
    refused = _is_refused(partial(_put, client, stranger)) and _is_refused(lambda: list(client.list_objects(stranger)))
    yield Checked(
        "be refused in another tenant's bucket",
        "" if refused else "TENANTS ARE NOT ISOLATED: this STS ignores session policies; do not use it",
    )


def _put(client: Minio, bucket: str, sse: Any = None) -> None:
    client.put_object(bucket, _OBJECT, io.BytesIO(b"check"), 5, sse=sse)


def _put_and_get(client: Minio, bucket: str, sse: Any) -> None:
    _put(client, bucket, sse)
    answer = client.get_object(bucket, _OBJECT)
    try:
        if answer.read() != b"check":
            raise ValueError("other bytes")
    finally:
        answer.close()
        answer.release_conn()
    client.remove_object(bucket, _OBJECT)


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except S3Error as error:
        return error.code in _REFUSED
    return False


def _attempt(call: Callable[[], object]) -> str:
    """What went wrong, by kind alone: the client's own texts name hosts and keys."""
    try:
        call()
    except S3Error as error:
        return str(error.code)
    except S3_FAILURES as error:
        return type(error).__name__
    return ""
