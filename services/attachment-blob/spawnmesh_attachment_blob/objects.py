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
from spawnmesh_core.cancellation import uninterrupted
from spawnmesh_core.clock import Monotonic, monotonic_seconds, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.telemetry import traced

from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.s3_calls import DeletionsRefused, S3Calls, S3Failed
from spawnmesh_attachment_blob.s3_puts import CredentialsRefused, Put, SignedPut
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets

PIECE_BYTES = 256 * 1024


class NotAllPut(S3Failed):
    """Some objects of a set could not be put. Those of `never_sent_keys` are certainly not there."""

    def __init__(self, never_sent_keys: frozenset[str]) -> None:
        super().__init__(never_sent=False)
        self.never_sent_keys = never_sent_keys


class ObjectMissing(Exception):
    """There is no such object."""


def stored_hash_differs(sha256: str) -> MeshError:
    """The refusal for an object whose bytes are not those that were stored."""
    return MeshError(
        Reason.STORED_HASH_DIFFERS,
        "the stored bytes are not the ones that were handed over; restore them from a backup",
        facts={"sha256": sha256},
    )


class OpenObject:
    """An object that is being read, and the hash of what was read so far."""

    def __init__(self, calls: S3Calls, response: Any, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._calls = calls
        self._response = response
        self._monotonic = monotonic
        self._digest = hashlib.sha256()
        self._is_left = False

    async def next_piece(self) -> bytes:
        """The next PIECE_BYTES, fewer at the end, none after it. Raises S3Failed, for a piece that is not whole in time, too.

        A cancelled caller is held until the thread has stopped, which it does with the next bytes that come.
        """
        reading = asyncio.ensure_future(self._calls.run(self._read))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._is_left = True
            with suppress(S3Failed):
                await uninterrupted(_result_of(reading))
            raise

    def _read(self) -> bytes:
        # S3's silence is limited for each receive alone: who sends a byte now and then would hold the thread for good.
        end = self._monotonic() + self._calls.seconds_for(PIECE_BYTES)
        piece = bytearray()
        while len(piece) < PIECE_BYTES:
            if self._is_left or self._monotonic() > end:
                raise TimeoutError
            data = self._response.read1(PIECE_BYTES - len(piece))
            if not data:
                break
            piece += data
        self._digest.update(piece)
        return bytes(piece)

    @property
    def sha256(self) -> str:
        """Lower-case hex of what was read."""
        return self._digest.hexdigest()


class ObjectStore:
    """Puts, reads and deletes with the credentials of the tenant alone."""

    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._buckets = buckets
        self._calls = calls
        self._signed: dict[str, SignedPut] = {}  # By key, which each staging has of its own.

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        """Puts all of them, each under a key of its hash, side by side, and waits for all; for a caller that is not interrupted. Raises
        NotAllPut.
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
            raise NotAllPut(frozenset(key for key, found in by_key if isinstance(found, S3Failed) and found.never_sent))

    async def put(self, tenant_id: str, key: str, sha256: str, data: bytes) -> None:
        """The object, durable; `sha256` is that of the bytes. Raises S3Failed. A cancelled caller is held until its fate is known."""
        await uninterrupted(self._put(tenant_id, key, sha256, data))

    @contextmanager
    def signing_ahead(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> Iterator[None]:
        """While the block waits, requests to put these objects are signed, one after the other; `put_all` in it takes those that are ready."""
        signing = asyncio.create_task(self._sign(tenant_id, data_by_key))
        try:
            yield
        finally:
            signing.cancel()
            for key in data_by_key:
                self._signed.pop(key, None)

    async def _sign(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        credentials = self._buckets.credentials_at_hand(tenant_id)
        if credentials is None:
            return
        for key, data in data_by_key.items():
            self._signed[key] = self._calls.signed(self._put_of(tenant_id, key, hash_of_key(key), data), credentials)
            await asyncio.sleep(0)  # What the block waits for may have come.

    def _put_of(self, tenant_id: str, key: str, sha256: str, data: bytes) -> Put:
        return Put(self._buckets.bucket_of(tenant_id), key, sha256, data, self._buckets.encryption_of(tenant_id))

    async def _put(self, tenant_id: str, key: str, sha256: str, data: bytes) -> None:
        signed = self._signed.pop(key, None)
        put = self._put_of(tenant_id, key, sha256, data)
        if signed is None:
            signed = self._calls.signed(put, await self._credentials(tenant_id))
        try:
            await self._calls.put(signed)
        except CredentialsRefused:
            self._buckets.forget(tenant_id)
            await self._put_again(put, tenant_id)

    async def _put_again(self, put: Put, tenant_id: str) -> None:
        try:
            await self._calls.put(self._calls.signed(put, await self._credentials(tenant_id)))
        except CredentialsRefused:
            raise S3Failed(never_sent=False) from None

    async def _credentials(self, tenant_id: str) -> Credentials:
        """Without a thread, as long as they need not be fetched."""
        at_hand = self._buckets.credentials_at_hand(tenant_id)
        return at_hand if at_hand is not None else await self._calls.run(self._buckets.credentials, tenant_id)

    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        """Deletes all of them side by side and waits for all; one that is not there counts as deleted.

        Raises DeletionsRefused where nothing but refusals was in the way, S3Failed for all else.
        """
        async with traced("s3.delete_objects", spawnmesh__object_count=len(keys)):
            results = await asyncio.gather(
                *(self._calls.run(self._delete, tenant_id, key) for key in keys), return_exceptions=True
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
    async def open(self, tenant_id: str, key: str, offset: int = 0, length: int = 0) -> AsyncIterator[OpenObject]:
        """The object, or a range of it (0 is to the end), open for reading until the block ends. Raises ObjectMissing, S3Failed."""
        response = await self._calls.run(self._get, tenant_id, key, offset, length)
        try:
            yield OpenObject(self._calls, response)
        finally:
            await self._calls.run(_close, response)

    async def size_of(self, tenant_id: str, key: str) -> int | None:
        """The object's size; None where it is not there. Raises S3Failed."""
        return await self._calls.run(self._size, tenant_id, key)

    async def download_url(self, tenant_id: str, key: str, name: str, lifetime_seconds: int) -> tuple[str, datetime]:
        """A URL that gives the object as a download of that name, whatever its bytes look like, and when it stops to.

        That is earlier than asked for where STS gives no credentials that last as long. Raises S3Failed.
        """
        return await self._calls.run(self._url, tenant_id, key, name, lifetime_seconds)

    def _delete(self, tenant_id: str, key: str) -> None:
        self._buckets.within(tenant_id, lambda client, bucket: client.remove_object(bucket, key))

    def _get(self, tenant_id: str, key: str, offset: int, length: int) -> Any:
        try:
            return self._buckets.within(
                tenant_id, lambda client, bucket: client.get_object(bucket, key, offset=offset, length=length)
            )
        except S3Error as error:
            if error.code == "NoSuchKey":
                raise ObjectMissing from None
            raise

    def _size(self, tenant_id: str, key: str) -> int | None:
        try:
            found = self._buckets.within(tenant_id, lambda client, bucket: client.stat_object(bucket, key))
        except S3Error as error:
            if error.code == "NoSuchKey":
                return None
            raise
        size: int = found.size
        return size

    def _url(self, tenant_id: str, key: str, name: str, lifetime_seconds: int) -> tuple[str, datetime]:
        # Not the sender's MIME type: a browser would run what it names.
        headers: dict[str, str | list[str] | tuple[str]] = {
            "response-content-type": "application/octet-stream",
            "response-content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        signer = self._buckets.signer(tenant_id)
        sign_time = utc_now().replace(microsecond=0)  # A URL says whole seconds.
        lifetime = min(timedelta(seconds=lifetime_seconds), signer.end_time.replace(microsecond=0) - sign_time)
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
