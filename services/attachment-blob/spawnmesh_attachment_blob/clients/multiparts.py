"""Multipart uploads and listings of a bucket.

The minio library completes a multipart upload within one call. Parts that outlive a call need its
private methods for single requests, to which its maintainers refer
(https://github.com/minio/minio-py/issues/1484). Only this module calls them, and the library's
version is pinned. A test fails when there are public methods: call these then.
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

from spawnmesh_attachment_blob.clients.s3_calls import DeletionsRefused, S3Calls, S3Failed
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain.comparison import ObjectEntry
from spawnmesh_attachment_blob.domain.uploads import StoredPart

T = TypeVar("T")

_GONE = ("NoSuchUpload", "NoSuchKey")
_BROKEN = (*_GONE, "InvalidPart", "InvalidPartOrder", "EntityTooSmall")


class BucketMissing(Exception):
    """The tenant has no bucket."""


class PartsLost(Exception):
    """S3 does not have the parts, or does not have them any more."""


@dataclass(frozen=True, slots=True)
class MultipartEntry:
    """A multipart upload that was neither completed nor aborted."""

    key: str
    multipart_id: str
    begin_time: datetime


class Multiparts:
    """Multipart uploads with credentials limited to the tenant's bucket.

    All methods raise S3Failed.
    """

    def __init__(self, buckets: TenantBuckets, calls: S3Calls) -> None:
        self._buckets = buckets
        self._calls = calls

    async def begin(self, tenant_id: str, key: str) -> str:
        """Begin a multipart upload and return its id."""
        return await self._calls.call(self._begin, tenant_id, key)

    async def put_part(
        self, tenant_id: str, key: str, multipart_id: str, number: int, data: memoryview
    ) -> StoredPart:
        """Put the part, replacing an earlier one with this number. It is durable on return.

        Raises PartsLost if the multipart upload has ended.
        """
        return await self._calls.call(self._put_part, tenant_id, key, multipart_id, number, data)

    async def complete(
        self, tenant_id: str, key: str, multipart_id: str, parts: Sequence[StoredPart]
    ) -> None:
        """Create the object from the parts.

        Raises PartsLost, and S3Failed if the body of the response reports a failure, whatever its
        status.
        """
        await self._calls.call(self._complete, tenant_id, key, multipart_id, parts)

    async def abort(self, tenant_id: str, key: str, multipart_id: str) -> None:
        """Delete the parts.

        A missing multipart upload counts as aborted. Raises DeletionsRefused.
        """
        try:
            await self._calls.call(self._abort, tenant_id, key, multipart_id)
        except S3Failed as failed:
            if failed.is_deletion_refused:
                raise DeletionsRefused(frozenset({key})) from None
            raise

    async def list_unfinished(
        self, tenant_id: str, after: MultipartEntry | None, limit: int
    ) -> list[MultipartEntry]:
        """List up to `limit` (at most 1000) unfinished multipart uploads behind `after`.

        Raises BucketMissing.
        """
        return await self._calls.call(self._list_unfinished, tenant_id, after, limit)

    async def list_objects(self, tenant_id: str, prefix: str, after: str, limit: int) -> list[ObjectEntry]:
        """List up to `limit` objects with this prefix behind the key `after`, ordered by key.

        Raises BucketMissing.
        """
        return await self._calls.call(self._list_objects, tenant_id, prefix, after, limit)

    def _begin(self, tenant_id: str, key: str) -> str:
        sse = self._buckets.encryption_of(tenant_id)
        headers: dict[str, str | list[str] | tuple[str]] = {**sse.headers()} if sse else {}
        multipart_id: str = self._buckets.call_in_bucket(
            tenant_id, lambda client, bucket: client._create_multipart_upload(bucket, key, headers)
        )
        return multipart_id

    def _put_part(
        self, tenant_id: str, key: str, multipart_id: str, number: int, data: memoryview
    ) -> StoredPart:
        # The library accepts any buffer with a length. A copy would cost the memory of a part.
        body = cast(bytes, data)
        try:
            etag: str = self._buckets.call_in_bucket(
                tenant_id,
                lambda client, bucket: client._upload_part(bucket, key, body, None, multipart_id, number),
            )
        except S3Error as error:
            if error.code in _GONE:
                raise PartsLost from None
            raise
        return StoredPart(number, len(data), etag)

    def _complete(self, tenant_id: str, key: str, multipart_id: str, parts: Sequence[StoredPart]) -> None:
        # The library's own method ignores an error in a response of status 200.
        body = _completion(parts)
        headers: dict[str, str | list[str] | tuple[str]] = {
            "Content-Type": "application/xml",
            "Content-MD5": md5sum_hash(body) or "",
        }

        def complete(client: Minio, bucket: str) -> None:
            _require_completed(
                client._execute("POST", bucket, key, body, headers, {"uploadId": multipart_id})
            )

        try:
            self._buckets.call_in_bucket(tenant_id, complete)
        except S3Error as error:
            if error.code in _BROKEN:
                raise PartsLost from None
            raise

    def _abort(self, tenant_id: str, key: str, multipart_id: str) -> None:
        try:
            self._buckets.call_in_bucket(
                tenant_id, lambda client, bucket: client._abort_multipart_upload(bucket, key, multipart_id)
            )
        except S3Error as error:
            if error.code not in _GONE:
                raise

    def _list_unfinished(
        self, tenant_id: str, after: MultipartEntry | None, limit: int
    ) -> list[MultipartEntry]:
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
            return [
                ObjectEntry(entry.object_name, entry.size, entry.last_modified)
                for entry in islice(found, limit)
            ]

        return self._listed(tenant_id, page)

    def _listed(self, tenant_id: str, page: Callable[[Minio, str], list[T]]) -> list[T]:
        try:
            entries: list[T] = self._buckets.call_in_bucket(tenant_id, page)
        except S3Error as error:
            if error.code == "NoSuchBucket":
                raise BucketMissing from None
            raise
        return entries


def _completion(parts: Sequence[StoredPart]) -> bytes:
    """Build the body of the request that completes the multipart upload."""
    root = Element("CompleteMultipartUpload", {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"})
    for part in parts:
        element = SubElement(root, "Part")
        SubElement(element, "PartNumber").text = str(part.number)
        SubElement(element, "ETag").text = f'"{part.etag}"'
    return tostring(root)


def _require_completed(response: BaseHTTPResponse) -> None:
    """Raise if the body reports a failure, as S3Error if it names one.

    S3 sends status 200 before it knows the result.
    """
    # The library parses all responses of S3 with this function.
    found = fromstring(response.data)  # noqa: S314
    kind = found.tag.rpartition("}")[2]
    if kind == "Error":
        raise S3Error.fromxml(response)
    if kind != "CompleteMultipartUploadResult" or not findtext(found, "ETag"):
        raise ValueError("S3 did not confirm that the object exists")
