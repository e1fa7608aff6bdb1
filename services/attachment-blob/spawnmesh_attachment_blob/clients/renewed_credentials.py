"""Credentials that are renewed before they expire. Synchronous: call it in a thread."""

import threading
from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import ParseError

import structlog
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from minio.error import MinioException
from spawnmesh_core.clock import Clock
from urllib3.exceptions import HTTPError

CREDENTIALS_SECONDS = 3600
"""The lifetime that STS is asked for."""
_RENEW_BEFORE = timedelta(minutes=5)
_DISCARD_BEFORE = timedelta(minutes=1)  # Longer than the longest call that uses them.
_RETRY_RENEWAL_AFTER = timedelta(seconds=10)
S3_FAILURES = (MinioException, HTTPError, OSError, ValueError, ParseError)
"""Exceptions of the client for a failure of S3 or STS.

It raises ValueError if STS returns an error.
"""

log = structlog.get_logger()


class RenewedCredentials(Provider):
    """Credentials that one thread renews; the other threads continue with the current ones.

    So does the renewing thread if the renewal fails. `owner` names them in the log.
    """

    _shortest_use = timedelta()
    """New credentials are not renewed before, even if they end soon."""

    def __init__(self, owner: str, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Credentials | None = None
        self._renew_time: datetime | None = None
        self._failure_count = 0

    @abstractmethod
    def _fetch(self) -> Credentials:
        """Return new credentials. Raises S3_FAILURES."""

    def retrieve(self) -> Credentials:
        """Return credentials that are valid for longer than a call.

        Raises S3_FAILURES if there are none.
        """
        cached = self.cached()
        if cached is not None:
            return cached
        if self._current is not None and self._left(self._current) > _DISCARD_BEFORE:
            return self._renewed(self._current)
        failed_before = self._failure_count
        with self._lock:
            if self._current is not None and self._left(self._current) > _DISCARD_BEFORE:
                return self._current
            # A request of another thread failed while this one waited. Do not repeat it: such
            # threads would retry one by one and occupy the threads of all tenants.
            if self._failure_count != failed_before:
                raise ConnectionError("STS returned no credentials")
            try:
                return self._take(self._fetch())
            except S3_FAILURES:
                self._failure_count += 1
                raise

    def cached(self) -> Credentials | None:
        """Return credentials that need not be renewed yet, or None. Does not block."""
        if self._current is None or self._renew_time is None or self._clock() >= self._renew_time:
            return None
        return self._current

    def end_of(self, credentials: Credentials) -> datetime:
        """Return the time at which S3 stops accepting them."""
        return (self._clock() + self._left(credentials)).astimezone(UTC)

    def _renewed(self, current: Credentials) -> Credentials:
        if not self._lock.acquire(blocking=False):
            return current
        try:
            return self.cached() or self._take(self._fetch())
        except S3_FAILURES as error:
            self._renew_time = self._clock() + _RETRY_RENEWAL_AFTER
            log.warning("credentials_not_renewed", owner=self._owner, error=type(error).__name__)
            return current
        finally:
            self._lock.release()

    def _take(self, credentials: Credentials) -> Credentials:
        self._current = credentials
        now = self._clock()
        self._renew_time = max(now + self._left(credentials) - _RENEW_BEFORE, now + self._shortest_use)
        return credentials

    def _left(self, credentials: Credentials) -> timedelta:
        """Return the remaining lifetime. The library stores the expiry as a naive time in UTC."""
        if credentials.expiration is None:
            return timedelta(seconds=CREDENTIALS_SECONDS)
        return credentials.expiration - self._clock().replace(tzinfo=None)
