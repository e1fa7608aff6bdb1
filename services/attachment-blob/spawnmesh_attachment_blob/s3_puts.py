"""Puts of whole objects, on the event loop itself.

The client library sends from a thread and builds each request there. For small files that is most of what a put costs in this process, and the
threads of a set hold each other and the loop up. Here the request is signed with the library's own function, under the hash that is known
already, and sent without a thread. It can be signed while something else is waited for.
"""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3
from minio.sse import Sse
from minio.time import to_amz_date, utcnow
from multidict import CIMultiDict
from yarl import URL

from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

CREDENTIALS_REFUSED = ("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch")
"""What S3 says of credentials that do not hold, or not any more."""
_SECONDS_FOR_A_BYTE = 1 / (1024 * 1024)  # Slower than this is as good as silent.
_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_WHOLE_BYTES = 64 * 1024
_ANSWER_BYTES = 64 * 1024
_CONNECT_PAUSE_SECONDS = 0.1


class PutRefused(Exception):
    """S3 answered something else than that the object is there."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class CredentialsRefused(Exception):
    """The object was not put: S3 does not take the credentials."""


PUT_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, PutRefused)


def is_never_sent(error: BaseException) -> bool:
    """Whether no connection came about, so that nothing can have happened in S3."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


@dataclass(frozen=True, slots=True)
class Put:
    """An object to be put; `sha256` is that of its bytes."""

    bucket: str
    key: str
    sha256: str
    data: bytes
    encryption: Sse | None


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A request that puts an object, good for some minutes."""

    url: URL
    headers: CIMultiDict[str]
    data: bytes


class ObjectPuts:
    """At most as many puts at a time as there may be calls in threads; the others wait."""

    def __init__(self, session: aiohttp.ClientSession, settings: AttachmentBlobSettings) -> None:
        self._session = session
        self._base = f"{'https' if settings.s3_secure else 'http'}://{settings.s3_endpoint}"
        self._host = settings.s3_endpoint
        self._region = settings.s3_region
        self._patience_seconds = settings.s3_connect_timeout_seconds + settings.s3_read_timeout_seconds
        self._places = asyncio.Semaphore(settings.s3_max_threads)

    async def put(self, signed: SignedPut) -> None:
        """The object, durable. Raises CredentialsRefused and PUT_FAILURES. Only a connection that did not come about is tried again, once."""
        async with self._places:
            try:
                await self._send(signed)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
                await self._send(signed)

    def seconds_for(self, size_bytes: int) -> float:
        """How long so many bytes may take."""
        return self._patience_seconds + size_bytes * _SECONDS_FOR_A_BYTE

    async def _send(self, signed: SignedPut) -> None:
        data = signed.data
        # Sent in pieces where it is large, so that the loop is not held for the whole of it.
        body = data if len(data) <= _WHOLE_BYTES else io.BytesIO(data)
        async with (
            asyncio.timeout(self.seconds_for(len(data))),
            self._session.put(signed.url, data=body, headers=signed.headers, allow_redirects=False) as response,
        ):
            answer = await response.content.read(_ANSWER_BYTES)
            if response.status == 200:
                return
        found = _CODE.search(answer)
        code = found.group(1).decode() if found else str(response.status)
        if code in CREDENTIALS_REFUSED:
            raise CredentialsRefused
        raise PutRefused(code)

    def signed(self, put: Put, credentials: Credentials) -> SignedPut:
        """The request for it. Nothing is sent."""
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
        signed = sign_v4_s3(
            method="PUT",
            url=urlsplit(url),
            region=self._region,
            headers=headers,
            credentials=credentials,
            content_sha256=put.sha256,
            date=now,
        )
        return SignedPut(URL(url), CIMultiDict({name: str(value) for name, value in signed.items()}), put.data)


@asynccontextmanager
async def open_puts(settings: AttachmentBlobSettings) -> AsyncIterator[ObjectPuts]:
    """Connections that are kept warm, closed when the block ends."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=settings.s3_connect_timeout_seconds, sock_read=settings.s3_read_timeout_seconds
    )
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield ObjectPuts(session, settings)
