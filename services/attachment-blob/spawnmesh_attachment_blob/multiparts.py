"""Objects that are put in parts, and what is in a bucket.

The client library does multipart uploads within one call only. Parts that outlive a call need the single requests, which it has as methods
that begin with an underscore; they are called here and nowhere else, and the library's version is pinned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar, cast
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from minio import Minio
from minio.error import S3Error
from minio.helpers import md5sum_hash
from minio.xml import findtext
from spawnmesh_core.clock import utc_now
from urllib3 import BaseHTTPResponse

from spawnmesh_attachment_blob.domain.comparison import ObjectEntry
from spawnmesh_attachment_blob.s3_calls import DeletionsRefused, S3Calls, S3Failed
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets

T = TypeVar("T")

_GONE = ("NoSuchUpload", "NoSuchKey")
_BROKEN = (*_GONE, "InvalidPart", "InvalidPartOrder", "EntityTooSmall")


class BucketMissing(Exception):
    """The tenant has no bucket."""


class PartsLost(Exception):
    """S3 does not have the parts that were put, or not any more."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that is durable."""

    number: int
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class MultipartEntry:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    multipart_id: str
    begin_time: datetime


class Multiparts:
    """Multipart uploads with the credentials of the tenant alone. Every function raises S3Failed."""

    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._buckets = buckets
        self._calls = calls

    async def begin(self, tenant_id: str, key: str) -> str:
        """The id of a new multipart upload."""
        return await self._calls.run(self._begin, tenant_id, key)

    async def put_part(self, tenant_id: str, key: str, multipart_id: str, number: int, data: memoryview) -> StoredPart:
        """The part, durable; one of that number put before is replaced. Raises PartsLost where the multipart upload was ended."""
        return await self._calls.run(self._put_part, tenant_id, key, multipart_id, number, data)

    async def complete(self, tenant_id: str, key: str, multipart_id: str, parts: Sequence[StoredPart]) -> None:
        """S3 says that the object is there. Raises PartsLost, and S3Failed where its answer is a failure, whatever its status."""
        await self._calls.run(self._complete, tenant_id, key, multipart_id, parts)

    async def abort(self, tenant_id: str, key: str, multipart_id: str) -> None:
        """Its parts are gone; one that is gone already counts. Raises DeletionsRefused."""
        try:
            await self._calls.run(self._abort, tenant_id, key, multipart_id)
        except S3Failed as failed:
            if failed.is_deletion_refused:
                raise DeletionsRefused(frozenset({key})) from None
            raise

    async def list_unfinished(self, tenant_id: str, after: MultipartEntry | None, limit: int) -> list[MultipartEntry]:
        """Up to `limit` (at most 1000) of the bucket's unfinished multipart uploads, behind `after`. Raises BucketMissing."""
        return await self._calls.run(self._list_unfinished, tenant_id, after, limit)

    async def list_objects(self, tenant_id: str, prefix: str, after: str, limit: int) -> list[ObjectEntry]:
        """Up to `limit` of the bucket's objects with that prefix, behind the key `after`, in the order of their keys. Raises BucketMissing."""
        return await self._calls.run(self._list_objects, tenant_id, prefix, after, limit)

    def _begin(self, tenant_id: str, key: str) -> str:
        sse = self._buckets.encryption_of(tenant_id)
        headers: dict[str, str | list[str] | tuple[str]] = {**sse.headers()} if sse else {}
        multipart_id: str = self._buckets.within(
            tenant_id, lambda client, bucket: client._create_multipart_upload(bucket, key, headers)
        )
        return multipart_id

    def _put_part(self, tenant_id: str, key: str, multipart_id: str, number: int, data: memoryview) -> StoredPart:
        body = cast(
            bytes, data
        )  # Whatever has a length and a buffer is hashed and sent; a copy would cost a part of memory.
        try:
            etag: str = self._buckets.within(
                tenant_id, lambda client, bucket: client._upload_part(bucket, key, body, None, multipart_id, number)
            )
        except S3Error as error:
            if error.code in _GONE:
                raise PartsLost from None
            raise
        return StoredPart(number, len(data), etag)

    def _complete(self, tenant_id: str, key: str, multipart_id: str, parts: Sequence[StoredPart]) -> None:
        # Not by the library's method, which takes an error in an answer of status 200 for a completion.
        body = _completion(parts)
        headers: dict[str, str | list[str] | tuple[str]] = {
            "Content-Type": "application/xml",
            "Content-MD5": md5sum_hash(body) or "",
        }

        def complete(client: Minio, bucket: str) -> None:
            _require_completed(client._execute("POST", bucket, key, body, headers, {"uploadId": multipart_id}))

        try:
            self._buckets.within(tenant_id, complete)
        except S3Error as error:
            if error.code in _BROKEN:
                raise PartsLost from None
            raise

    def _abort(self, tenant_id: str, key: str, multipart_id: str) -> None:
        try:
            self._buckets.within(
                tenant_id, lambda client, bucket: client._abort_multipart_upload(bucket, key, multipart_id)
            )
        except S3Error as error:
            if error.code not in _GONE:
                raise

    def _list_unfinished(self, tenant_id: str, after: MultipartEntry | None, limit: int) -> list[MultipartEntry]:
        def page(client: Minio, bucket: str) -> list[MultipartEntry]:
            found = client._list_multipart_uploads(
                bucket,
                max_uploads=limit,
                key_marker=after.key if after else None,
                upload_id_marker=after.multipart_id if after else None,
            )
            return [
                MultipartEntry(entry.object_name, entry.upload_id or "", entry.initiated_time or utc_now())
                for entry in found.uploads
            ]

        return self._listed(tenant_id, page)

    def _list_objects(self, tenant_id: str, prefix: str, after: str, limit: int) -> list[ObjectEntry]:
        def page(client: Minio, bucket: str) -> list[ObjectEntry]:
            found = client.list_objects(bucket, prefix=prefix, recursive=True, start_after=after or None)
            return [ObjectEntry(entry.object_name, entry.size, entry.last_modified) for entry in islice(found, limit)]

        return self._listed(tenant_id, page)

    def _listed(self, tenant_id: str, page: Callable[[Minio, str], list[T]]) -> list[T]:
        try:
            entries: list[T] = self._buckets.within(tenant_id, page)
        except S3Error as error:
            if error.code == "NoSuchBucket":
                raise BucketMissing from None
            raise
        return entries


def _completion(parts: Sequence[StoredPart]) -> bytes:
    """The body of the request that makes an object of the parts."""
    root = Element("CompleteMultipartUpload", {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"})
    for part in parts:
        named = SubElement(root, "Part")
        SubElement(named, "PartNumber").text = str(part.number)
        SubElement(named, "ETag").text = f'"{part.etag}"'
    return tostring(root)


def _require_completed(response: BaseHTTPResponse) -> None:
    """Raises what the body says went wrong, as S3Error where it names it: S3 answers with status 200 before it knows."""
    found = fromstring(response.data)  # noqa: S314 - the library reads all answers of S3 like this.
    kind = found.tag.rpartition("}")[2]
    if kind == "Error":
        raise S3Error.fromxml(response)
    if kind != "CompleteMultipartUploadResult" or not findtext(found, "ETag"):
        raise ValueError("S3 did not say that the object is there")
