"""Puts of complete objects on the event loop.

The minio library builds and sends each request in a thread. For small files the thread is most of
the cost of a put, and the threads of one set delay each other and the event loop. This module
signs the request with the library's function, under the hash that is already known, and sends it
without a thread. A request can be signed before it is sent.
"""

import asyncio
import io
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3
from minio.sse import Sse
from minio.time import to_amz_date, utcnow
from multidict import CIMultiDict
from yarl import URL

from spawnmesh_attachment_blob.clients.s3_silence import S3Silence
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

CREDENTIALS_REFUSED = (
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
)
"""S3 error codes for credentials that are invalid or have expired."""
_SECONDS_PER_BYTE = 1 / (1024 * 1024)  # A slower transfer counts as a failed one.
_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_UNCHUNKED_BYTES = 64 * 1024
_ANSWER_BYTES = 64 * 1024
_CONNECT_PAUSE_SECONDS = 0.1


class PutRefused(Exception):
    """S3 refused the put. `code` is the S3 error code or the HTTP status."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class CredentialsRefused(Exception):
    """S3 refused the credentials. The object was not put."""


PUT_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, PutRefused)


def is_never_sent(error: BaseException) -> bool:
    """Return whether no connection was established, so that nothing can have happened in S3."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


@dataclass(frozen=True, slots=True)
class Put:
    """An object to put. `sha256` is the hash of its bytes."""

    bucket: str
    key: str
    sha256: str
    data: bytes
    encryption: Sse | None


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A signed request that puts an object. The signature is valid for some minutes."""

    url: URL
    headers: CIMultiDict[str]
    data: bytes


class ObjectPuts:
    """Sends at most `s3_max_threads` puts at a time; other puts wait."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: AttachmentBlobSettings, silence: S3Silence
    ) -> None:
        self._session = session
        self._silence = silence
        self._base = base_url(settings)
        self._host = settings.s3_endpoint
        self._region = settings.s3_region
        self._base_seconds = settings.s3_connect_timeout_seconds + settings.s3_read_timeout_seconds
        self._limiter = asyncio.Semaphore(settings.s3_max_threads)

    async def put(self, signed: SignedPut) -> None:
        """Put the object. It is durable on return.

        Raises CredentialsRefused, S3Silent and PUT_FAILURES.

        Retries once if no connection was established.
        """
        async with self._limiter:
            self._silence.check()
            async with self._silence.leaving():
                try:
                    await self._send(signed)
                except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                    await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
                    await self._send(signed)

    def seconds_for(self, size_bytes: int) -> float:
        """Return the timeout for a transfer of this size."""
        return self._base_seconds + size_bytes * _SECONDS_PER_BYTE

    async def _send(self, signed: SignedPut) -> None:
        data = signed.data
        # aiohttp sends a file object in chunks, so that a large body does not block the event loop.
        body = data if len(data) <= _UNCHUNKED_BYTES else io.BytesIO(data)
        async with (
            asyncio.timeout(self.seconds_for(len(data))),
            self._session.put(
                signed.url, data=body, headers=signed.headers, allow_redirects=False
            ) as response,
        ):
            answer = await response.content.read(_ANSWER_BYTES)
            if response.status == 200:
                return
        found = _CODE.search(answer)
        code = found.group(1).decode() if found else str(response.status)
        if code in CREDENTIALS_REFUSED:
            raise CredentialsRefused
        raise PutRefused(code)

    def sign(self, put: Put, credentials: Credentials) -> SignedPut:
        """Sign the request. Sends nothing."""
        url, now = f"{self._base}/{put.bucket}/{put.key}", utcnow()
        headers: dict[str, str | list[str] | tuple[str]] = {
            "Host": self._host,
            "Content-Type": "application/octet-stream",
            "x-amz-content-sha256": put.sha256,
            "x-amz-date": to_amz_date(now),
            **(put.encryption.headers() if put.encryption else {}),
        }
        if credentials.session_token:
            headers["X-Amz-Security-Token"] = credentials.session_token
        signed_headers = sign_v4_s3(
            method="PUT",
            url=urlsplit(url),
            region=self._region,
            headers=headers,
            credentials=credentials,
            content_sha256=put.sha256,
            date=now,
        )
        return SignedPut(
            URL(url), CIMultiDict({name: str(value) for name, value in signed_headers.items()}), put.data
        )


def base_url(settings: AttachmentBlobSettings) -> str:
    """Return the URL of the S3 server."""
    return f"{'https' if settings.s3_secure else 'http'}://{settings.s3_endpoint}"


def http_session(settings: AttachmentBlobSettings) -> aiohttp.ClientSession:
    """Return a session for S3 that keeps connections alive."""
    timeout = aiohttp.ClientTimeout(
        total=None,
        sock_connect=settings.s3_connect_timeout_seconds,
        sock_read=settings.s3_read_timeout_seconds,
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )
