"""A provider whose bodies are endless, encoded or too deep to parse."""

import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from tests.support.model_router.provider import Answering

MIB = 1024 * 1024
BOMB_BYTES = 192 * MIB
"""The bytes that a bomb inflates to."""


@dataclass
class Flood:
    """Sends the beginning, and then a piece again and again, until the caller hangs up."""

    status: int = 200
    content_type: str = "application/json"
    begin: bytes = b""
    piece: bytes = b"x" * 64 * 1024
    location: str = ""
    most_bytes: int = 96 * MIB
    """Here the attack ends, if nothing stops it."""
    sent_bytes: int = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        headers = {"content-type": self.content_type}
        if self.location:
            headers["location"] = self.location
        response = web.StreamResponse(status=self.status, headers=headers)
        await response.prepare(request)
        await response.write(self.begin)
        while self.sent_bytes < self.most_bytes:
            await response.write(self.piece)
            self.sent_bytes += len(self.piece)
        return response


def gzip_bomb() -> bytes:
    """Return compressed zeros."""
    press = zlib.compressobj(9, wbits=31)
    return b"".join(press.compress(bytes(MIB)) for _ in range(BOMB_BYTES // MIB)) + press.flush()


def encoded(status: int, content_type: str = "application/json") -> Answering:
    """Answer with a gzip bomb, whatever the caller accepts."""
    return _body(status, {"content-type": content_type, "content-encoding": "gzip"}, gzip_bomb)


def nested(status: int, content_type: str = "application/json", begin: str = "") -> Answering:
    """Answer with JSON that is too deep to be parsed."""
    text = f"{begin}{'[' * 100_000}{']' * 100_000}\n\n"
    return _body(status, {"content-type": content_type}, text.encode)


def wide(status: int, content_type: str = "application/json", begin: str = "") -> Answering:
    """Answer with JSON of two million objects in six MiB."""
    text = f"{begin}[{'{},' * (2 * MIB)}{{}}]\n\n"
    return _body(status, {"content-type": content_type}, text.encode)


def _body(status: int, headers: dict[str, str], make: Callable[[], bytes]) -> Answering:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=make(), headers=headers)

    return answer


@contextmanager
def memory_bound(limit_bytes: int) -> Iterator[None]:
    """Check that the block keeps at most so many bytes more at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes
