"""The objects in a tenant's bucket."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from minio.credentials.credentials import Credentials
from minio.error import S3Error
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_runtime.telemetry import traced

from spawnmesh_attachment_blob.clients.s3_calls import DeletionsRefused, S3Calls, S3Failed
from spawnmesh_attachment_blob.clients.s3_puts import CredentialsRefused, Put, SignedPut
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain.comparison import hash_of_key

PIECE_BYTES = 256 * 1024


class NotAllPut(S3Failed):
    """Some objects of a set could not be put. Those of `never_sent_keys` do not exist."""

    def __init__(self, never_sent_keys: frozenset[str]) -> None:
        super().__init__(never_sent=False)
        self.never_sent_keys = never_sent_keys


class ObjectMissing(Exception):
    """The object does not exist."""


class OpenObject:
    """An object that is open for reading, and the hash of the bytes read so far."""

    def __init__(self, calls: S3Calls, response: Any) -> None:
        self._calls = calls
        self._response = response
        self._digest = hashlib.sha256()
        self._is_abandoned = False

    async def next_piece(self) -> bytes:
        """Read the next PIECE_BYTES, fewer at the end, none behind it.

        Raises S3Failed, also if the piece is not complete within its timeout. A cancelled caller
        waits until the thread has stopped, which happens when it receives the next bytes.
        """
        reading = asyncio.ensure_future(self._calls.call(self._read))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._is_abandoned = True
            with suppress(S3Failed):
                await shield_until_done(_result_of(reading))
            raise

    def _read(self) -> bytes:
        # The HTTP client's timeout covers a single receive. A sender of single bytes would
        # otherwise occupy the thread without end.
        end = monotonic_seconds() + self._calls.seconds_for(PIECE_BYTES)
        piece = bytearray()
        while len(piece) < PIECE_BYTES:
            if self._is_abandoned or monotonic_seconds() > end:
                raise TimeoutError
            data = self._response.read1(PIECE_BYTES - len(piece))
            if not data:
                break
            piece += data
        self._digest.update(piece)
        return bytes(piece)

    @property
    def sha256(self) -> str:
        """The lower-case hex hash of the bytes read so far."""
        return self._digest.hexdigest()


class ObjectStore:
    """Puts, reads and deletes objects with credentials that are limited to the tenant's bucket."""

    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._buckets = buckets
        self._calls = calls
        self._signed: dict[str, SignedPut] = {}  # By object key. Keys are unique to a call.

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        """Put all objects concurrently and wait for all of them. Raises NotAllPut.

        Each key contains the hash of its bytes. Protect the caller from cancellation.
        """
        async with traced("s3.put_objects", spawnmesh__object_count=len(data_by_key)):
            results = await asyncio.gather(
                *(self._put(tenant_id, key, hash_of_key(key), data) for key, data in data_by_key.items()),
                return_exceptions=True,
            )
        failed = [result for result in results if isinstance(result, BaseException)]
        for error in failed:
            if not isinstance(error, S3Failed):
                raise error
        if failed:
            by_key = zip(data_by_key, results, strict=True)
            raise NotAllPut(
                frozenset(key for key, found in by_key if isinstance(found, S3Failed) and found.never_sent)
            )

    async def put(self, tenant_id: str, key: str, sha256: str, data: bytes) -> None:
        """Put the object with this hash. It is durable on return. Raises S3Failed.

        A cancelled caller waits until the put has ended.
        """
        await shield_until_done(self._put(tenant_id, key, sha256, data))

    @contextmanager
    def presign(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> Iterator[None]:
        """Sign the puts of these objects while the block waits. `put_all` uses the signed ones."""
        signing = asyncio.create_task(self._sign(tenant_id, data_by_key))
        try:
            yield
        finally:
            signing.cancel()
            for key in data_by_key:
                self._signed.pop(key, None)

    async def _sign(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        credentials = self._buckets.cached_credentials(tenant_id)
        if credentials is None:
            return
        for key, data in data_by_key.items():
            self._signed[key] = self._calls.sign(
                self._put_of(tenant_id, key, hash_of_key(key), data), credentials
            )
            await asyncio.sleep(0)  # Let the block continue if it can.

    def _put_of(self, tenant_id: str, key: str, sha256: str, data: bytes) -> Put:
        return Put(
            self._buckets.bucket_of(tenant_id), key, sha256, data, self._buckets.encryption_of(tenant_id)
        )

    async def _put(self, tenant_id: str, key: str, sha256: str, data: bytes) -> None:
        signed = self._signed.pop(key, None)
        put = self._put_of(tenant_id, key, sha256, data)
        if signed is None:
            signed = self._calls.sign(put, await self._credentials(tenant_id))
        try:
            await self._calls.put(signed)
        except CredentialsRefused:
            self._buckets.forget(tenant_id)
            await self._put_again(put, tenant_id)

    async def _put_again(self, put: Put, tenant_id: str) -> None:
        try:
            await self._calls.put(self._calls.sign(put, await self._credentials(tenant_id)))
        except CredentialsRefused:
            raise S3Failed(never_sent=False) from None

    async def _credentials(self, tenant_id: str) -> Credentials:
        """Return the tenant's credentials. Uses a thread only if they must be fetched."""
        cached = self._buckets.cached_credentials(tenant_id)
        return cached if cached is not None else await self._calls.call(self._buckets.credentials, tenant_id)

    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        """Delete all objects concurrently and wait for all of them.

        A missing object counts as deleted.

        Raises DeletionsRefused if refusals are the only failures, and S3Failed for other failures.
        """
        async with traced("s3.delete_objects", spawnmesh__object_count=len(keys)):
            results = await asyncio.gather(
                *(self._calls.call(self._delete, tenant_id, key) for key in keys), return_exceptions=True
            )
        refused = set()
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, S3Failed) and result.is_deletion_refused:
                refused.add(key)
            elif isinstance(result, BaseException):
                raise result
        if refused:
            raise DeletionsRefused(frozenset(refused))

    @asynccontextmanager
    async def open(
        self, tenant_id: str, key: str, offset: int = 0, length: int = 0
    ) -> AsyncIterator[OpenObject]:
        """Open the object or a range of it for the block. A `length` of 0 means "to the end".

        Raises ObjectMissing and S3Failed.
        """
        opened: list[Any] = []  # A cancelled caller gets no result, and still has to close it.
        try:
            await self._calls.call(lambda: opened.append(self._get(tenant_id, key, offset, length)))
            yield OpenObject(self._calls, opened[0])
        finally:
            for response in opened:
                await self._calls.call(_close, response)

    async def size_of(self, tenant_id: str, key: str) -> int | None:
        """Return the object's size, or None if it does not exist. Raises S3Failed."""
        return await self._calls.call(self._size, tenant_id, key)

    async def download_url(
        self, tenant_id: str, key: str, name: str, lifetime_seconds: int
    ) -> tuple[str, datetime]:
        """Return a URL that serves the object as a download with this name, and when it expires.

        It expires earlier than requested if the current credentials do. Raises S3Failed.
        """
        return await self._calls.call(self._url, tenant_id, key, name, lifetime_seconds)

    def _delete(self, tenant_id: str, key: str) -> None:
        self._buckets.call_in_bucket(tenant_id, lambda client, bucket: client.remove_object(bucket, key))

    def _get(self, tenant_id: str, key: str, offset: int, length: int) -> Any:
        try:
            return self._buckets.call_in_bucket(
                tenant_id, lambda client, bucket: client.get_object(bucket, key, offset=offset, length=length)
            )
        except S3Error as error:
            if error.code == "NoSuchKey":
                raise ObjectMissing from None
            raise

    def _size(self, tenant_id: str, key: str) -> int | None:
        try:
            found = self._buckets.call_in_bucket(
                tenant_id, lambda client, bucket: client.stat_object(bucket, key)
            )
        except S3Error as error:
            if error.code == "NoSuchKey":
                return None
            raise
        size: int = found.size
        return size

    def _url(self, tenant_id: str, key: str, name: str, lifetime_seconds: int) -> tuple[str, datetime]:
        # Do not serve the sender's MIME type: a browser could execute the content.
        headers: dict[str, str | list[str] | tuple[str]] = {
            "response-content-type": "application/octet-stream",
            "response-content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        signer = self._buckets.signer(tenant_id)
        sign_time = utc_now().replace(microsecond=0)  # A URL counts in full seconds.
        lifetime = min(
            timedelta(seconds=lifetime_seconds), signer.end_time.replace(microsecond=0) - sign_time
        )
        url = signer.client.presigned_get_object(
            self._buckets.bucket_of(tenant_id),
            key,
            expires=lifetime,
            response_headers=headers,
            request_date=sign_time,
        )
        return url, sign_time + lifetime


async def _result_of(reading: asyncio.Future[bytes]) -> bytes:
    return await reading


def _close(response: Any) -> None:
    response.close()
    response.release_conn()
