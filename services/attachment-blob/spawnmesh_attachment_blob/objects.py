"""The objects in a tenant's bucket, by the hash of their bytes."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from minio import Minio
from minio.error import S3Error
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.telemetry import traced

from spawnmesh_attachment_blob.domain.sets import object_key
from spawnmesh_attachment_blob.s3_calls import S3Calls, S3Failed
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets

PIECE_BYTES = 256 * 1024
_CREDENTIALS_REFUSED = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch")


class NotAllPut(S3Failed):
    """Some objects of a set could not be put. Those of `never_sent_hashes` are certainly not there because of this."""

    def __init__(self, never_sent_hashes: frozenset[str]) -> None:
        super().__init__(never_sent=False)
        self.never_sent_hashes = never_sent_hashes


class ObjectMissing(Exception):
    """There is no object of that hash."""


def stored_hash_differs(sha256: str) -> MeshError:
    """The refusal for an object whose bytes are not those that were stored."""
    return MeshError(
        Reason.STORED_HASH_DIFFERS,
        "the stored bytes are not the ones that were handed over; restore them from a backup",
        facts={"sha256": sha256},
    )


class OpenObject:
    """An object that is being read, and the hash of what was read so far."""

    def __init__(self, calls: S3Calls, response: Any) -> None:
        self._calls = calls
        self._response = response
        self._digest = hashlib.sha256()

    async def next_piece(self) -> bytes:
        """The next PIECE_BYTES, fewer at the end, none after it."""
        return await self._calls.run(self._read)

    def _read(self) -> bytes:
        piece: bytes = self._response.read(PIECE_BYTES)
        self._digest.update(piece)
        return piece

    @property
    def sha256(self) -> str:
        """Lower-case hex of what was read."""
        return self._digest.hexdigest()


class ObjectStore:
    """Puts, reads and deletes with the credentials of the tenant alone."""

    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._buckets = buckets
        self._calls = calls

    async def make_bucket(self, tenant_id: str) -> None:
        """The tenant's bucket exists afterwards. Raises S3Failed."""
        await self._calls.run(self._buckets.make_bucket, tenant_id)

    async def put_all(self, tenant_id: str, data_by_hash: Mapping[str, bytes]) -> None:
        """Puts all of them side by side and waits for all. Raises NotAllPut."""
        async with traced("s3.put_objects", spawnmesh__object_count=len(data_by_hash)):
            results = await asyncio.gather(
                *(self._calls.run(self._put, tenant_id, sha256, data) for sha256, data in data_by_hash.items()),
                return_exceptions=True,
            )
        failed = [result for result in results if isinstance(result, BaseException)]
        for error in failed:
            if not isinstance(error, S3Failed):
                raise error
        if failed:
            by_hash = zip(data_by_hash, results, strict=True)
            raise NotAllPut(
                frozenset(sha256 for sha256, found in by_hash if isinstance(found, S3Failed) and found.never_sent)
            )

    async def delete_all(self, tenant_id: str, hashes: Collection[str]) -> None:
        """Deletes all of them side by side and waits for all; one that is not there counts as deleted. Raises S3Failed."""
        async with traced("s3.delete_objects", spawnmesh__object_count=len(hashes)):
            results = await asyncio.gather(
                *(self._calls.run(self._delete, tenant_id, sha256) for sha256 in hashes), return_exceptions=True
            )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @asynccontextmanager
    async def open(self, tenant_id: str, sha256: str) -> AsyncIterator[OpenObject]:
        """The object, open for reading until the block ends. Raises ObjectMissing, S3Failed."""
        response = await self._calls.run(self._get, tenant_id, sha256)
        try:
            yield OpenObject(self._calls, response)
        finally:
            await self._calls.run(_close, response)

    def _put(self, tenant_id: str, sha256: str, data: bytes) -> None:
        self._in_bucket(
            tenant_id, lambda client, bucket: client.put_object(bucket, object_key(sha256), io.BytesIO(data), len(data))
        )

    def _delete(self, tenant_id: str, sha256: str) -> None:
        self._in_bucket(tenant_id, lambda client, bucket: client.remove_object(bucket, object_key(sha256)))

    def _get(self, tenant_id: str, sha256: str) -> Any:
        try:
            return self._in_bucket(tenant_id, lambda client, bucket: client.get_object(bucket, object_key(sha256)))
        except S3Error as error:
            if error.code == "NoSuchKey":
                raise ObjectMissing from None
            raise

    def _in_bucket(self, tenant_id: str, call: Callable[[Minio, str], Any]) -> Any:
        try:
            return call(self._buckets.client_for(tenant_id), self._buckets.bucket_of(tenant_id))
        except S3Error as error:
            if error.code in _CREDENTIALS_REFUSED:
                self._buckets.forget(tenant_id)
            raise


def _close(response: Any) -> None:
    response.close()
    response.release_conn()
