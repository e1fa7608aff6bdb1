"""Credentials for one bucket, which STS gives for a while. Synchronous: to be called in a thread, where it is not said otherwise."""

import json
import threading
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import ParseError

import structlog
import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import AssumeRoleProvider, Provider
from minio.error import MinioException
from spawnmesh_core.clock import Clock
from urllib3.exceptions import HTTPError

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
_RENEW_BEFORE = timedelta(minutes=5)
_LET_GO_BEFORE = timedelta(minutes=1)  # Longer than the longest call they are used for.
_RENEW_AGAIN_AFTER = timedelta(seconds=10)
S3_FAILURES = (MinioException, HTTPError, OSError, ValueError, ParseError)
"""What the client raises when S3 or STS fails; it says ValueError for an answer of STS that is no success."""

log = structlog.get_logger()


class BucketCredentials(Provider):
    """Renewed before they expire, by one thread while the others go on with those that still hold; so does the one, if STS fails."""

    def __init__(self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, bucket: str, clock: Clock) -> None:
        self._settings = settings
        self._http = http
        self._bucket = bucket
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Credentials | None = None
        self._renew_time: datetime | None = None
        self._failure_count = 0

    def retrieve(self) -> Credentials:
        """Credentials that hold for longer than a call takes. Raises S3_FAILURES where there are none left."""
        at_hand = self.at_hand()
        if at_hand is not None:
            return at_hand
        if self._current is not None and self._left(self._current) > _LET_GO_BEFORE:
            return self._renewed(self._current)
        failed_before = self._failure_count
        with self._lock:
            if self._current is not None and self._left(self._current) > _LET_GO_BEFORE:
                return self._current
            # Who waited while another one asked in vain does not ask after it: one by one they would hold the threads of all tenants.
            if self._failure_count != failed_before:
                raise ConnectionError("STS gave nothing")
            try:
                return self._take(self._assume_role())
            except S3_FAILURES:
                self._failure_count += 1
                raise

    def at_hand(self) -> Credentials | None:
        """Credentials that need not be renewed yet. Does not block."""
        if self._current is None or self._renew_time is None or self._clock() >= self._renew_time:
            return None
        return self._current

    def end_of(self, credentials: Credentials) -> datetime:
        """When S3 stops taking them."""
        return (self._clock() + self._left(credentials)).astimezone(UTC)

    def _renewed(self, still_good: Credentials) -> Credentials:
        if not self._lock.acquire(blocking=False):
            return still_good
        try:
            return self.at_hand() or self._take(self._assume_role())
        except S3_FAILURES as error:
            self._renew_time = self._clock() + _RENEW_AGAIN_AFTER
            log.warning("credentials_not_renewed", bucket=self._bucket, error=type(error).__name__)
            return still_good
        finally:
            self._lock.release()

    def _take(self, credentials: Credentials) -> Credentials:
        self._current = credentials
        self._renew_time = self._clock() + self._left(credentials) - _RENEW_BEFORE
        return credentials

    def _left(self, credentials: Credentials) -> timedelta:
        """How long they hold. The library keeps the time of expiry in UTC, without saying so."""
        if credentials.expiration is None:
            return timedelta(seconds=_CREDENTIALS_SECONDS)
        return credentials.expiration - self._clock().replace(tzinfo=None)

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
