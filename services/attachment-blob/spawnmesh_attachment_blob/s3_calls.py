"""Calls of the synchronous S3 client from the event loop: bounded threads, bounded time, one kind of failure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import structlog
import urllib3
from minio.credentials.credentials import Credentials
from spawnmesh_core.cancellation import uninterrupted
from spawnmesh_core.errors import MeshError, unavailable
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from spawnmesh_attachment_blob.bucket_credentials import S3_FAILURES
from spawnmesh_attachment_blob.s3_puts import PUT_FAILURES, ObjectPuts, Put, SignedPut, is_never_sent, open_puts
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()


_OBJECT_IS_KEPT = frozenset({"AccessDenied", "InvalidRequest", "MethodNotAllowed", "ObjectLockedByBucketPolicy"})
"""What stores say to who deletes an object that a lock, a legal hold or a policy of the bucket keeps."""


class S3Failed(MeshError):
    """S3 did not do it, or did not say so. `never_sent` when no connection came about: then nothing can have happened there.

    `code` is what S3 answered, empty where it answered nothing.
    """

    def __init__(self, *, never_sent: bool, code: str = "") -> None:
        refusal = unavailable("S3")
        super().__init__(
            refusal.reason,
            refusal.message,
            retry_after_seconds=refusal.retry_after_seconds,
            facts=refusal.facts,
        )
        self.never_sent = never_sent
        self.code = code

    @property
    def is_deletion_refused(self) -> bool:
        """Whether S3 is well and will not delete what it was asked to, for as long as something keeps that."""
        return self.code in _OBJECT_IS_KEPT


class DeletionsRefused(S3Failed):
    """S3 will not delete what is under these keys. All else that was to be deleted with it is gone."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(never_sent=False)
        self.keys = keys


def http_pool(settings: AttachmentBlobSettings) -> urllib3.PoolManager:
    """Connections to S3 and STS. Only a connection that did not come about is tried again, once: what was sent may have been done."""
    return urllib3.PoolManager(
        maxsize=settings.s3_max_threads,
        timeout=urllib3.Timeout(connect=settings.s3_connect_timeout_seconds, read=settings.s3_read_timeout_seconds),
        retries=urllib3.Retry(total=None, connect=1, read=0, redirect=0, status=0, other=0, backoff_factor=0.1),
    )


class S3Calls:
    """Runs calls in threads of their own, at most as many at a time as the executor has; the others wait."""

    def __init__(self, executor: ThreadPoolExecutor, puts: ObjectPuts) -> None:
        self._executor = executor
        self._puts = puts

    def seconds_for(self, size_bytes: int) -> float:
        """How long so many bytes may take on their way, either way. What takes longer is as good as silent."""
        return self._puts.seconds_for(size_bytes)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns. Raises S3Failed, which names no address, for whatever S3 or the way to it did wrong.

        A cancelled caller is held until the thread is done, so that nothing happens in S3 behind the back of who cleans up.
        """
        try:
            return await uninterrupted(self._in_thread(lambda: call(*args, **kwargs)))
        except S3_FAILURES as error:
            code = str(getattr(error, "code", ""))
            log.warning("s3_call_failed", error=type(error).__name__, code=code)
            raise S3Failed(never_sent=_never_sent(error), code=code) from None

    def signed(self, put: Put, credentials: Credentials) -> SignedPut:
        """The request for it. Does not block."""
        return self._puts.signed(put, credentials)

    async def put(self, signed: SignedPut) -> None:
        """The object, durable. Raises CredentialsRefused where S3 says that the credentials do not hold, S3Failed for all else that goes wrong.

        Not in a thread, and for a caller that is not interrupted: else it would not be known what became of it.
        """
        try:
            await self._puts.put(signed)
        except PUT_FAILURES as error:
            log.warning("s3_call_failed", error=type(error).__name__, code=getattr(error, "code", ""))
            raise S3Failed(never_sent=is_never_sent(error)) from None

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _never_sent(error: BaseException) -> bool:
    return isinstance(error, MaxRetryError) and isinstance(error.reason, NewConnectionError | ConnectTimeoutError)


@asynccontextmanager
async def open_s3_calls(settings: AttachmentBlobSettings) -> AsyncIterator[S3Calls]:
    """The threads, ended when the block ends."""
    executor = ThreadPoolExecutor(settings.s3_max_threads, thread_name_prefix="s3")
    try:
        async with open_puts(settings) as puts:
            yield S3Calls(executor, puts)
    finally:
        await asyncio.to_thread(executor.shutdown)
