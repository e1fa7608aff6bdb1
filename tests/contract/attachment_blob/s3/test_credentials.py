"""STS credentials are renewed before they expire, during calls and during an outage of STS."""

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import urllib3
from minio.credentials.credentials import Credentials
from spawnmesh_attachment_blob.clients.bucket_credentials import BucketCredentials
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import http_pool, open_s3_calls
from spawnmesh_attachment_blob.clients.s3_puts import CredentialsRefused, Put
from spawnmesh_attachment_blob.clients.service_credentials import service_credentials
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_core.clock import utc_now

from tests.support.attachment_blob.fixtures import BlobService, Tenant

SHA256_OF_X = hashlib.sha256(b"x").hexdigest()


@dataclass
class Ahead:
    """A clock that a test can advance."""

    by: timedelta = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.by


class CountedLock:
    """A lock that counts the threads that have come for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came: list[int] = []

    def __enter__(self) -> None:
        self.came.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Sts(BucketCredentials):
    """STS under an advanced clock. It counts requests, and a test can stop or delay it."""

    def __init__(
        self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, bucket: str, clock: Ahead
    ) -> None:
        super().__init__(settings, http, service_credentials(settings, http, clock), bucket, clock)
        self.ahead = clock
        self.calls = 0
        self.away = False
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def _fetch(self) -> Credentials:
        self.calls += 1
        self.entered.set()
        assert self.go_on.wait(60)
        if self.away:
            raise ConnectionError("STS is away")
        given = super()._fetch()
        assert given.expiration is not None
        return replace(given, expiration=given.expiration + self.ahead.by)


class Buckets(TenantBuckets):
    """Uses such an STS."""

    def __init__(self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, clock: Ahead) -> None:
        super().__init__(settings, http, clock=clock)
        self.ahead = clock

    def _credentials_of(self, bucket: str) -> BucketCredentials:
        return Sts(self._settings, self._http, bucket, self.ahead)


@pytest.fixture
def http(blobs: BlobService) -> Iterator[urllib3.PoolManager]:
    with http_pool(blobs.settings) as pool:
        yield pool


@pytest.fixture
def sts(tenant: Tenant, http: urllib3.PoolManager) -> tuple[Sts, Ahead]:
    clock = Ahead()
    return Sts(tenant.service.settings, http, tenant.bucket, clock), clock


async def test_calls_under_load_never_use_expired_credentials(
    tenant: Tenant, http: urllib3.PoolManager
) -> None:
    """Threads and the event loop use credentials while the clock passes six lifetimes."""
    clock = Ahead()
    buckets = Buckets(tenant.service.settings, http, clock)
    seen: set[str] = set()
    stop = threading.Event()

    def work() -> int:
        count = 0
        while not stop.is_set():
            now = clock().replace(tzinfo=None)
            held = buckets.credentials(tenant.tenant_id)
            assert held.expiration is not None
            assert held.expiration > now, "handed out after its end"
            seen.add(str(held.session_token))
            buckets.call_in_bucket(
                tenant.tenant_id, lambda client, bucket: list(client.list_objects(bucket, "none/"))
            )
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work) for _ in range(4)]
        try:
            async with open_s3_calls(tenant.service.settings) as calls:
                objects = ObjectStore(buckets, calls)
                for _ in range(165):
                    clock.by += timedelta(minutes=2)
                    await objects.put_all(tenant.tenant_id, {SHA256_OF_X: b"x"})
        finally:
            stop.set()
        assert all(worker.result(60) > 0 for worker in workers)

    assert 5 <= len(seen) <= 8


def test_valid_credentials_are_used_during_an_outage_of_sts(sts: tuple[Sts, Ahead]) -> None:
    credentials, clock = sts
    first = credentials.retrieve()
    credentials.away = True

    clock.by = timedelta(minutes=56)
    assert [credentials.retrieve() for _ in range(3)] == [first] * 3
    assert credentials.calls == 2, "STS is not asked again at once"
    clock.by += timedelta(seconds=11)
    assert credentials.retrieve() is first
    assert credentials.calls == 3
    clock.by = timedelta(minutes=59, seconds=30)
    with pytest.raises(ConnectionError):
        credentials.retrieve()
    credentials.away = False

    assert credentials.retrieve().session_token != first.session_token


def test_one_thread_renews_and_the_others_do_not_wait(sts: tuple[Sts, Ahead]) -> None:
    credentials, clock = sts
    first = credentials.retrieve()
    clock.by = timedelta(minutes=56)
    credentials.entered.clear()
    credentials.go_on.clear()
    with ThreadPoolExecutor(1) as threads:
        renewing = threads.submit(credentials.retrieve)
        assert credentials.entered.wait(60)
        assert credentials.cached() is None
        assert [credentials.retrieve() for _ in range(5)] == [first] * 5
        credentials.go_on.set()
        renewed = renewing.result(60)

    assert renewed is not first
    assert credentials.retrieve() is renewed
    assert credentials.calls == 2


def test_all_threads_wait_for_the_first_credentials(sts: tuple[Sts, Ahead]) -> None:
    credentials, _ = sts
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: credentials.retrieve(), range(8)))

    assert len({held.session_token for held in found}) == 1
    assert credentials.calls == 1


async def test_credentials_that_S3_refuses_are_replaced_within_the_call(
    tenant: Tenant, http: urllib3.PoolManager
) -> None:
    """After a change of the keys behind STS no caller sees an error."""
    buckets = TenantBuckets(tenant.service.settings, http)
    bad = Credentials("unknown", "unknown", "unknown", utc_now() + timedelta(hours=1))
    async with open_s3_calls(tenant.service.settings) as calls:
        objects = ObjectStore(buckets, calls)
        for attempt in (
            lambda: objects.put_all(tenant.tenant_id, {SHA256_OF_X: b"x"}),
            lambda: objects.size_of(tenant.tenant_id, "nothing"),
        ):
            buckets.forget(tenant.tenant_id)
            buckets._access(tenant.tenant_id).credentials._take(bad)
            await attempt()

        with pytest.raises(CredentialsRefused):
            await calls.put(calls.sign(Put(tenant.bucket, "k", SHA256_OF_X, b"x", None), bad))


def test_waiting_threads_do_not_repeat_a_failed_request_to_sts(sts: tuple[Sts, Ahead]) -> None:
    """A failure may take seconds. Retries in sequence would occupy the threads of all tenants."""
    credentials, _ = sts
    credentials.away = True
    credentials.go_on.clear()
    lock: Any = CountedLock()
    credentials._lock = lock
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(credentials.retrieve)
        assert credentials.entered.wait(60)
        waiting = [threads.submit(credentials.retrieve) for _ in range(7)]
        while len(lock.came) < 8:
            time.sleep(0.001)
        credentials.go_on.set()
        for each in (first, *waiting):
            assert isinstance(each.exception(60), ConnectionError)
    assert credentials.calls == 1
    credentials.away = False

    assert credentials.retrieve().session_token
