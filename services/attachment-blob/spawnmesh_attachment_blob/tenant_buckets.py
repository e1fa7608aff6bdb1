"""One bucket for each tenant, and a client for it that S3 refuses everywhere else. Synchronous: to be called in a thread."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import AssumeRoleProvider, Provider
from minio.error import S3Error
from minio.sse import Sse, SseKMS, SseS3
from spawnmesh_core.clock import Clock, utc_now

from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_ACTIONS = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:ListBucket",
    "s3:AbortMultipartUpload",
    "s3:ListBucketMultipartUploads",
]
_CREDENTIALS_SECONDS = 3600
_RENEW_BEFORE = timedelta(minutes=5)  # Far longer than the longest call they are used for.
_CREDENTIALS_REFUSED = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch")
_ALREADY_THERE = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


class _BucketCredentials(Provider):
    """Credentials that STS gives for one bucket, taken by one thread at a time and renewed before they expire."""

    def __init__(self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, bucket: str, clock: Clock) -> None:
        self._settings = settings
        self._http = http
        self._bucket = bucket
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Credentials | None = None

    def retrieve(self) -> Credentials:
        with self._lock:
            if self._current is None or self._is_due(self._current):
                self._current = self._assume_role()
            return self._current

    def _is_due(self, credentials: Credentials) -> bool:
        # The library keeps the time of expiry in UTC, without saying so.
        return credentials.expiration is not None and (
            self._clock().replace(tzinfo=None) > credentials.expiration - _RENEW_BEFORE
        )

    def _assume_role(self) -> Credentials:
        arn = f"arn:aws:s3:::{self._bucket}"
        statement = {"Effect": "Allow", "Action": _ACTIONS, "Resource": [arn, f"{arn}/*"]}
        return AssumeRoleProvider(
            sts_endpoint=self._settings.sts_endpoint,
            access_key=self._settings.s3_access_key.get_secret_value(),
            secret_key=self._settings.s3_secret_key.get_secret_value(),
            duration_seconds=_CREDENTIALS_SECONDS,
            policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
            region=self._settings.s3_region,
            role_arn=self._settings.sts_role_arn,
            role_session_name=self._bucket,
            http_client=self._http,
        ).retrieve()


class TenantBuckets:
    """Makes buckets with the service's own keys, and gives clients for what is in them."""

    def __init__(self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, *, clock: Clock = utc_now) -> None:
        self._settings = settings
        self._http = http
        self._clock = clock
        self._clients: OrderedDict[str, Minio] = OrderedDict()
        self._lock = threading.Lock()

    def bucket_of(self, tenant_id: str) -> str:
        """The name of the tenant's bucket."""
        return f"{self._settings.bucket_prefix}{tenant_id}"

    def make_bucket(self, tenant_id: str) -> None:
        """The tenant's bucket exists afterwards and is ours; raises S3Error where somebody else has the name."""
        bucket = self.bucket_of(tenant_id)
        admin = self._client(None)
        if admin.bucket_exists(bucket):
            return
        try:
            admin.make_bucket(bucket)
        except S3Error as error:
            if error.code not in _ALREADY_THERE or not admin.bucket_exists(bucket):
                raise

    def remove_bucket(self, tenant_id: str) -> None:
        """The tenant's bucket, which is empty, does not exist afterwards; raises S3Error where something came into it."""
        try:
            self._client(None).remove_bucket(self.bucket_of(tenant_id))
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise

    def encryption_of(self, tenant_id: str) -> Sse | None:
        """How S3 shall encrypt what the tenant puts; None leaves it to the bucket."""
        match self._settings.s3_encryption:
            case "s3":
                return SseS3()
            case "kms":
                return SseKMS(self._settings.s3_kms_key_id.format(tenant_id=tenant_id), {})
            case _:
                return None

    def within(self, tenant_id: str, call: Callable[[Minio, str], Any]) -> Any:
        """What the call makes of the tenant's client and bucket. After a refusal the next call takes new credentials."""
        try:
            return call(self.client_for(tenant_id), self.bucket_of(tenant_id))
        except S3Error as error:
            if error.code in _CREDENTIALS_REFUSED:
                self._forget(tenant_id)
            raise

    def client_for(self, tenant_id: str) -> Minio:
        """A client with credentials for the tenant's bucket alone; kept for the next call, as those of the most recent tenants are."""
        with self._lock:
            client = self._clients.pop(tenant_id, None)
            if client is None:
                bucket = self.bucket_of(tenant_id)
                client = self._client(_BucketCredentials(self._settings, self._http, bucket, self._clock))
            self._clients[tenant_id] = client
            if len(self._clients) > self._settings.s3_max_cached_tenants:
                self._clients.popitem(last=False)
            return client

    def _forget(self, tenant_id: str) -> None:
        with self._lock:
            self._clients.pop(tenant_id, None)

    def _client(self, credentials: Provider | None) -> Minio:
        keys = (
            {"credentials": credentials}
            if credentials is not None
            else {
                "access_key": self._settings.s3_access_key.get_secret_value(),
                "secret_key": self._settings.s3_secret_key.get_secret_value(),
            }
        )
        # Without a region the client asks for the bucket's location, which scoped credentials may not.
        return Minio(
            self._settings.s3_endpoint,
            secure=self._settings.s3_secure,
            region=self._settings.s3_region,
            http_client=self._http,
            **keys,
        )
