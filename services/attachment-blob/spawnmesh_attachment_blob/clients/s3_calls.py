"""Calls of the synchronous S3 client from the event loop, with limited threads and time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import structlog
import urllib3
from minio.credentials.credentials import Credentials
from spawnmesh_core.cancellation import shield_until_done
from spawnmesh_core.errors import MeshError, unavailable
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from spawnmesh_attachment_blob.clients.renewed_credentials import S3_FAILURES
from spawnmesh_attachment_blob.clients.s3_puts import (
    PUT_FAILURES,
    ObjectPuts,
    Put,
    SignedPut,
    base_url,
    http_session,
    is_never_sent,
)
from spawnmesh_attachment_blob.clients.s3_silence import S3Silence, S3Silent, open_silence
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

_OBJECT_IS_KEPT = frozenset(
    {"AccessDenied", "InvalidRequest", "MethodNotAllowed", "ObjectLockedByBucketPolicy"}
)
"""S3 error codes for a delete that an object lock, a legal hold or a bucket policy forbids."""


class S3Failed(MeshError):
    """S3 failed, or its response was lost.

    If `never_sent`, no connection was established and nothing can have happened in S3. `code` is
    the S3 error code, empty if there was no response.
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
        """True if S3 works and refuses the delete because something protects the object."""
        return self.code in _OBJECT_IS_KEPT


class DeletionsRefused(S3Failed):
    """S3 refuses to delete the objects with these keys. The call deleted all its other objects."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(never_sent=False)
        self.keys = keys


def http_pool(settings: AttachmentBlobSettings) -> urllib3.PoolManager:
    """Return a connection pool for S3 and STS.

    Retries once if no connection was established. Other failures are not retried, because S3 may
    have executed the request.
    """
    return urllib3.PoolManager(
        maxsize=settings.s3_max_threads,
        timeout=urllib3.Timeout(
            connect=settings.s3_connect_timeout_seconds, read=settings.s3_read_timeout_seconds
        ),
        retries=urllib3.Retry(
            total=None, connect=1, read=0, redirect=0, status=0, other=0, backoff_factor=0.1
        ),
    )


class S3Calls:
    """Runs calls in the executor's threads. Calls beyond the number of threads wait.

    While S3 is silent, calls are refused at once.
    """

    def __init__(self, executor: ThreadPoolExecutor, puts: ObjectPuts, silence: S3Silence) -> None:
        self._executor = executor
        self._puts = puts
        self._silence = silence

    def seconds_for(self, size_bytes: int) -> float:
        """Return the timeout for a transfer of this size, in either direction."""
        return self._puts.seconds_for(size_bytes)

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in a thread. Raises S3Failed, which names no address, for every failure.

        A cancelled caller waits until the thread is done, so that its cleanup sees the final state.
        """
        try:
            with self._silence.suspecting():
                return await shield_until_done(self._in_thread(lambda: function(*args, **kwargs)))
        except S3Silent:
            raise S3Failed(never_sent=True) from None
        except S3_FAILURES as error:
            code = str(getattr(error, "code", ""))
            log.warning("s3_call_failed", error=type(error).__name__, code=code)
            raise S3Failed(never_sent=_never_sent(error), code=code) from None

    def sign(self, put: Put, credentials: Credentials) -> SignedPut:
        """Sign the request. Does not block."""
        return self._puts.sign(put, credentials)

    async def put(self, signed: SignedPut) -> None:
        """Put the object. It is durable on return. Raises CredentialsRefused and S3Failed.

        Runs without a thread. Protect the caller from cancellation: after a cancelled put the
        state of the object is unknown.
        """
        try:
            await self._puts.put(signed)
        except S3Silent:
            raise S3Failed(never_sent=True) from None
        except PUT_FAILURES as error:
            log.warning("s3_call_failed", error=type(error).__name__, code=getattr(error, "code", ""))
            raise S3Failed(never_sent=is_never_sent(error)) from None

    async def _in_thread(self, function: Callable[[], T]) -> T:
        def checked() -> T:
            self._silence.check()
            return function()

        return await asyncio.get_running_loop().run_in_executor(self._executor, checked)


def _never_sent(error: BaseException) -> bool:
    return isinstance(error, MaxRetryError) and isinstance(
        error.reason, NewConnectionError | ConnectTimeoutError
    )


@asynccontextmanager
async def open_s3_calls(settings: AttachmentBlobSettings) -> AsyncIterator[S3Calls]:
    """Open the threads and the HTTP session; close them when the block ends."""
    executor = ThreadPoolExecutor(settings.s3_max_threads, thread_name_prefix="s3")
    try:
        async with (
            http_session(settings) as session,
            open_silence(session, base_url(settings)) as silence,
        ):
            yield S3Calls(executor, ObjectPuts(session, settings, silence), silence)
    finally:
        await asyncio.to_thread(executor.shutdown)
