"""Notice that S3 has stopped answering, and refuse its calls at once until it answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import structlog

_ANSWER_SECONDS = 1.5
_PAUSE_SECONDS = 0.5

log = structlog.get_logger()


class S3Silent(Exception):
    """S3 does not answer at the moment, so the call was not made."""


class S3Silence:
    """Asks S3 for an answer of any kind after a call has timed out.

    A call may time out because it is slow, so S3 only counts as silent if it does not answer a
    request for its root either. Then it is asked until it answers.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._is_silent = False
        self._asking: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raise S3Silent if S3 is silent. May be called in any thread."""
        if self._is_silent:
            raise S3Silent

    def timed_out(self) -> None:
        """Note that a call has timed out."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_until_answered())

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    async def _ask_until_answered(self) -> None:
        while not await self._is_answered():
            if not self._is_silent:
                self._is_silent = True
                log.warning("s3_silent")
            await asyncio.sleep(_PAUSE_SECONDS)
        if self._is_silent:
            self._is_silent = False
            log.info("s3_answers")

    async def _is_answered(self) -> bool:
        """Return whether S3 sends a response, whatever it says, or refuses the connection."""
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                self._session.get(self._url, allow_redirects=False),
            ):
                return True
        except TimeoutError:
            return False
        except (aiohttp.ClientError, OSError):
            return True  # Calls fail at once by themselves.


@asynccontextmanager
async def open_silence(session: aiohttp.ClientSession, url: str) -> AsyncIterator[S3Silence]:
    """Return what watches the S3 server at `url`, for the block."""
    silence = S3Silence(session, url)
    try:
        yield silence
    finally:
        await silence.close()
