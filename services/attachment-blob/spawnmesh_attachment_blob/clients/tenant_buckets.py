"""A bucket for each tenant, and clients that are limited to it.

Synchronous: call it in a thread.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider, StaticProvider
from minio.error import S3Error
from minio.sse import Sse, SseKMS, SseS3
from spawnmesh_core.clock import Clock, utc_now

from spawnmesh_attachment_blob.clients.bucket_credentials import BucketCredentials
from spawnmesh_attachment_blob.clients.s3_puts import CREDENTIALS_REFUSED
from spawnmesh_attachment_blob.clients.service_credentials import service_credentials
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_ALREADY_THERE = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


@dataclass(frozen=True, slots=True)
class _Access:
    """Credentials and a client for one tenant's bucket."""

    credentials: BucketCredentials
    client: Minio


@dataclass(frozen=True, slots=True)
class Signer:
    """A client that signs with fixed credentials, which expire at `end_time`."""

    client: Minio
    end_time: datetime


class TenantBuckets:
    """Creates buckets with the service's own credentials, and caches clients for them."""

    def __init__(
        self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, *, clock: Clock = utc_now
    ) -> None:
        self._settings = settings
        self._http = http
        self._clock = clock
        self._own = service_credentials(settings, http, clock)
        self._accesses: OrderedDict[str, _Access] = OrderedDict()
        self._lock = threading.Lock()

    def bucket_of(self, tenant_id: str) -> str:
        """Return the name of the tenant's bucket."""
        return f"{self._settings.bucket_prefix}{tenant_id}"

    def has_bucket(self, tenant_id: str) -> bool:
        """Return whether the tenant has a bucket. Raises S3Error if S3 refuses the keys."""
        exists: bool = self._client(self._own).bucket_exists(self.bucket_of(tenant_id))
        return exists

    def make_bucket(self, tenant_id: str) -> None:
        """Create the tenant's bucket, unless it exists.

        Raises S3Error if another account owns it.
        """
        bucket = self.bucket_of(tenant_id)
        admin = self._client(self._own)
        if admin.bucket_exists(bucket):
            return
        try:
            admin.make_bucket(bucket)
        except S3Error as error:
            if error.code not in _ALREADY_THERE or not admin.bucket_exists(bucket):
                raise

    def remove_bucket(self, tenant_id: str) -> None:
        """Remove the tenant's empty bucket, if it exists. Raises S3Error if it is not empty."""
        try:
            self._client(self._own).remove_bucket(self.bucket_of(tenant_id))
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise

    def encryption_of(self, tenant_id: str) -> Sse | None:
        """Return the encryption of the tenant's objects; None for the bucket's default."""
        match self._settings.s3_encryption:
            case "s3":
                return SseS3()
            case "kms":
                return SseKMS(self._settings.s3_kms_key_id.format(tenant_id=tenant_id), {})
            case _:
                return None

    def call_in_bucket(self, tenant_id: str, call: Callable[[Minio, str], Any]) -> Any:
        """Call with the tenant's client and bucket.

        Retry once with new credentials if S3 refuses them.
        """
        bucket = self.bucket_of(tenant_id)
        try:
            return call(self.client_for(tenant_id), bucket)
        except S3Error as error:
            if error.code not in CREDENTIALS_REFUSED:
                raise
        self.forget(tenant_id)
        return call(self.client_for(tenant_id), bucket)

    def client_for(self, tenant_id: str) -> Minio:
        """Return a client with credentials for the tenant's bucket only, from the LRU cache."""
        return self._access(tenant_id).client

    def new_credentials(self, tenant_id: str) -> Credentials:
        """Return credentials for the tenant's bucket only, which STS has just given."""
        return self._credentials_of(self.bucket_of(tenant_id)).retrieve()

    def signer(self, tenant_id: str) -> Signer:
        """Return a signer with the tenant's credentials.

        They are renewed if that is due. If STS fails, they may expire soon.
        """
        held = self._access(tenant_id).credentials
        credentials = held.retrieve()
        keys = StaticProvider(credentials.access_key, credentials.secret_key, credentials.session_token)
        return Signer(self._client(keys), held.end_of(credentials))

    def credentials(self, tenant_id: str) -> Credentials:
        """Return credentials for the tenant's bucket only.

        Fetches or renews them if that is due.
        """
        return self._access(tenant_id).credentials.retrieve()

    def cached_credentials(self, tenant_id: str) -> Credentials | None:
        """Return credentials that need not be fetched or renewed, or None. Does not block."""
        return self._access(tenant_id).credentials.cached()

    def forget(self, tenant_id: str) -> None:
        """Make the next call for the tenant fetch new credentials."""
        with self._lock:
            self._accesses.pop(tenant_id, None)

    def _access(self, tenant_id: str) -> _Access:
        with self._lock:
            access = self._accesses.pop(tenant_id, None)
            if access is None:
                credentials = self._credentials_of(self.bucket_of(tenant_id))
                access = _Access(credentials, self._client(credentials))
            self._accesses[tenant_id] = access
            if len(self._accesses) > self._settings.s3_max_cached_tenants:
                self._accesses.popitem(last=False)
            return access

    def _credentials_of(self, bucket: str) -> BucketCredentials:
        return BucketCredentials(self._settings, self._http, self._own, bucket, self._clock)

    def _client(self, credentials: Provider) -> Minio:
        # Without a region the client asks for the bucket's location, which scoped credentials may
        # not do.
        return Minio(
            self._settings.s3_endpoint,
            secure=self._settings.s3_secure,
            region=self._settings.s3_region,
            http_client=self._http,
            credentials=credentials,
        )
