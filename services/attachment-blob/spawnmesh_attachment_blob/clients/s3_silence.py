"""Notice that S3 has stopped answering, and refuse its calls at once until it answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import structlog
from spawnmesh_core.silence_watch import SilenceWatch

_SUSPICIOUS_SECONDS = 0.4
# While S3 answers, the call only takes long, and suspects S3 less often.
_LONGEST_PAUSE_SECONDS = 4.0
_ANSWER_SECONDS = 0.5

log = structlog.get_logger()


class S3Silent(Exception):
    """S3 does not answer at the moment, so the call was not made."""


class S3Silence:
    """Asks S3 for an answer of any kind while a call waits.

    A call may take long, so S3 only counts as silent if it does not answer a request for its root
    either. Then it is asked until it answers.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._watch = SilenceWatch(self._ask, _ANSWER_SECONDS, self._changed)
        self._timers: dict[object, asyncio.TimerHandle] = {}
        self._left: set[asyncio.Timeout] = set()

    def check(self) -> None:
        """Raise S3Silent if S3 is silent. May be called in any thread."""
        if self._watch.is_silent:
            raise S3Silent

    @contextmanager
    def suspecting(self) -> Iterator[None]:
        """Ask S3 for an answer each time the block has taken twice as long as before."""
        call = object()
        self._suspect_later(call, _SUSPICIOUS_SECONDS)
        try:
            yield
            self._watch.answer_count += 1
        finally:
            self._timers.pop(call).cancel()

    @asynccontextmanager
    async def leaving(self) -> AsyncIterator[None]:
        """Do as `suspecting` does, and raise TimeoutError when S3 is silent."""
        with self.suspecting():
            async with asyncio.timeout(None) as left:
                self._left.add(left)
                try:
                    yield
                finally:
                    self._left.discard(left)

    async def close(self) -> None:
        """Stop asking."""
        await self._watch.close()

    def _suspect_later(self, call: object, pause: float) -> None:
        self._timers[call] = asyncio.get_running_loop().call_later(pause, self._suspect, call, pause)

    def _suspect(self, call: object, pause: float) -> None:
        self._watch.suspect()
        self._suspect_later(call, min(pause * 2, _LONGEST_PAUSE_SECONDS))

    def _changed(self, is_silent: bool) -> None:
        if is_silent:
            log.warning("s3_silent")
            now = asyncio.get_running_loop().time()
            for left in self._left:
                left.reschedule(now)
        else:
            log.info("s3_answers")

    async def _ask(self) -> None:
        """Return when S3 sends a response, whatever it says, or refuses the connection.

        In the latter case calls fail at once by themselves.
        """
        try:
            async with self._session.get(self._url, allow_redirects=False):
                return
        except TimeoutError:
            await asyncio.Event().wait()
        except (aiohttp.ClientError, OSError):
            return


@asynccontextmanager
async def open_silence(session: aiohttp.ClientSession, url: str) -> AsyncIterator[S3Silence]:
    """Return what watches the S3 server at `url`, for the block."""
    silence = S3Silence(session, url)
    try:
        yield silence
    finally:
        await silence.close()
