"""Check that S3 and STS isolate tenants: `python -m spawnmesh_attachment_blob check`.

Synchronous.
"""

import io
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.error import S3Error

from spawnmesh_attachment_blob.clients.renewed_credentials import S3_FAILURES
from spawnmesh_attachment_blob.clients.role_chaining import can_chain
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_OBJECT = "check"
_REFUSED = ("AccessDenied", "AllAccessDisabled")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one step. `advice` is empty if the step succeeded."""

    step: str
    advice: str = ""


def check_storage(
    settings: AttachmentBlobSettings, http: urllib3.PoolManager, buckets: TenantBuckets
) -> Iterator[CheckResult]:
    """Create two buckets, try one tenant's credentials on both and on STS, and remove the buckets.

    Stops at the first step that fails, because the later steps depend on it.
    """
    own, other = (f"check-{secrets.token_hex(4)}" for _ in range(2))
    made: list[str] = []
    try:
        for result in _run_steps(settings, http, buckets, own, other, made):
            yield result
            if result.advice:
                return
    finally:
        for tenant in made:
            _attempt(partial(buckets.remove_bucket, tenant))


def _run_steps(
    settings: AttachmentBlobSettings,
    http: urllib3.PoolManager,
    buckets: TenantBuckets,
    own: str,
    other: str,
    made: list[str],
) -> Iterator[CheckResult]:
    for tenant in (own, other):
        failed = _attempt(partial(buckets.make_bucket, tenant))
        yield CheckResult(
            "create a bucket",
            failed and f"{failed}: check s3_endpoint, the credentials, and their right to create buckets",
        )
        made.append(tenant)
    failed = _attempt(partial(buckets.credentials, own))
    yield CheckResult(
        "get a tenant's credentials",
        failed and f"{failed}: check sts_endpoint, sts_role_arn and the trust of the role",
    )
    client = buckets.client_for(own)
    failed = _attempt(partial(_put_and_get, client, buckets.bucket_of(own), buckets.encryption_of(own)))
    yield CheckResult(
        "write, read and delete in the own bucket",
        failed
        and f"{failed}: the role lacks a right, or s3_encryption {settings.s3_encryption} is not supported",
    )
    stranger = buckets.bucket_of(other)
    refused = _is_refused(partial(_put, client, stranger)) and _is_refused(
        lambda: list(client.list_objects(stranger))
    )
    yield CheckResult(
        "be refused in another tenant's bucket",
        "" if refused else "TENANTS ARE NOT ISOLATED: this STS ignores session policies; do not use it",
    )
    yield CheckResult("be refused by STS", _chaining(settings, http, buckets.credentials(own)))


def _chaining(settings: AttachmentBlobSettings, http: urllib3.PoolManager, held: Credentials) -> str:
    try:
        chained = can_chain(settings, http, held)
    except S3_FAILURES as error:
        return f"{type(error).__name__}: STS does not answer"
    return (
        "TENANTS ARE NOT ISOLATED: credentials of one tenant can assume the role again, without their"
        " policy; let the trust policy of the role name the user or the role of attachment-blob alone"
        if chained
        else ""
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
    """Return the kind of the failure, or an empty text.

    The client's own texts name hosts and keys.
    """
    try:
        call()
    except S3Error as error:
        return str(error.code)
    except S3_FAILURES as error:
        return type(error).__name__
    return ""
