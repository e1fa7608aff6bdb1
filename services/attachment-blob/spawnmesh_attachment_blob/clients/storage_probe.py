"""Probe S3 and STS, as dependencies of this process: reachable, its credentials accepted, and a
tenant's credentials limited to one bucket.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import urllib3
from minio.error import S3Error
from spawnmesh_core.dependency_watch import DependencyDown, DependencyFault, DependencyWatch
from urllib3.exceptions import HTTPError, ReadTimeoutError

from spawnmesh_attachment_blob.clients.renewed_credentials import S3_FAILURES
from spawnmesh_attachment_blob.clients.role_chaining import can_chain
from spawnmesh_attachment_blob.clients.s3_puts import CREDENTIALS_REFUSED
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

S3 = "s3"
STS = "sts"

# No tenant's id is like this, and no other account has a bucket of this name.
_PROBE_TENANT = "probe-4f1d09c7a6e2"
_S3_INTERVAL_SECONDS = 10.0
# Credentials last for an hour, and each call is an event in the audit log of a cloud.
_STS_INTERVAL_SECONDS = 60.0
_TIMEOUT = urllib3.Timeout(connect=1.0, read=2.0)


@contextmanager
def watching_storage(watch: DependencyWatch, settings: AttachmentBlobSettings) -> Iterator[None]:
    """Watch S3 and STS during the block.

    The probes have a thread and connections of their own: they wait for no request, and no request
    waits for them.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="storage-probe")
    http = urllib3.PoolManager(maxsize=1, timeout=_TIMEOUT, retries=False)
    with ExitStack() as stack:
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        buckets = TenantBuckets(settings, http)
        s3 = partial(_probe, executor, partial(_call_s3, buckets))
        sts = partial(_probe, executor, partial(_call_sts, settings, http, buckets))
        stack.enter_context(watch.watching(S3, s3, interval_seconds=_S3_INTERVAL_SECONDS))
        stack.enter_context(watch.watching(STS, sts, interval_seconds=_STS_INTERVAL_SECONDS))
        yield


async def _probe(executor: ThreadPoolExecutor, call: Callable[[], object]) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(executor, call)
    except S3_FAILURES as error:
        raise DependencyDown(fault_of(error)) from None


def _call_s3(buckets: TenantBuckets) -> None:
    """Ask for a bucket that does not exist. S3 checks the signature before it says so."""
    buckets.has_bucket(_PROBE_TENANT)


def _call_sts(settings: AttachmentBlobSettings, http: urllib3.PoolManager, buckets: TenantBuckets) -> None:
    """Get a tenant's credentials, and check that these get no further ones."""
    if can_chain(settings, http, buckets.new_credentials(_PROBE_TENANT)):
        raise DependencyDown(DependencyFault.NOT_ISOLATED)


def fault_of(error: BaseException) -> DependencyFault:
    """Return the kind of a failure of S3 or STS."""
    if isinstance(error, ReadTimeoutError):
        return DependencyFault.TIMEOUT
    if isinstance(error, S3Error):
        refused = error.code in CREDENTIALS_REFUSED
        return DependencyFault.CREDENTIALS_REFUSED if refused else DependencyFault.FAILED
    return DependencyFault.UNREACHABLE if isinstance(error, HTTPError | OSError) else DependencyFault.FAILED
