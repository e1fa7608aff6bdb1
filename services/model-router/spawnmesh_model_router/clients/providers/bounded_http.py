"""Bound the bytes that a provider can make the service read and keep, in every SDK.

The SDKs read an error body to its end, inflate encoded bodies, decode text with the codec that the
provider names, and collect the bytes of a stream until an event is complete. They also follow
redirects, with the API key in a header that no HTTP client removes, and keep cookies. The bounds
are hooks and settings of the SDKs' own HTTP clients: a transport of ours would disable the proxies
of the environment.
"""

import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypedDict, cast

import httpx2

from spawnmesh_model_router.clients.providers.sse import MAX_ERROR_BYTES, EventReader
from spawnmesh_model_router.clients.providers.tls import trust_store

_OK = 200

_TEXT_CHARSET = re.compile(
    r"utf-?(8|16)(-?[lb]e)?|(us-)?ascii|latin-?1|(iso-?8859|windows|cp)-?\d{1,4}"
    r"|gbk|gb2312|gb18030|big5|shift_jis|euc-(jp|kr)|koi8-[ru]",
    re.IGNORECASE,
)
"""Python has other codecs that decode text: `punycode` takes quadratic time."""


class HttpOptions(TypedDict):
    """Arguments of an SDK's HTTP client."""

    verify: ssl.SSLContext
    headers: dict[str, str]
    cookies: CookieJar
    follow_redirects: bool
    event_hooks: dict[str, list[Callable[..., Any]]]


def http_options(*, frames_events: bool) -> HttpOptions:
    """Return the arguments of an HTTP client whose responses are bounded.

    It follows no redirect: one is an error of the provider, and the request, its content and the
    key are for the configured address alone. It keeps no cookie, which would go to the calls of
    other tenants and keys.

    With `frames_events` the client yields nothing but complete events, for an SDK that reads a
    stream itself. Otherwise the caller reads an answer with EventReader.
    """
    return HttpOptions(
        verify=trust_store(),
        headers={"accept-encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        follow_redirects=False,
        event_hooks={"response": [bound_body, *([frame_events] if frames_events else [])]},
    )


async def bound_body(response: httpx2.Response) -> None:
    """Cut the body behind MAX_ERROR_BYTES, unless the status is 200. The status still counts.

    An encoded body is not decoded. In an error it counts as empty. Reading it in an answer raises
    ValueError.
    """
    charset = response.charset_encoding
    if charset is None or not _TEXT_CHARSET.fullmatch(charset):
        response.encoding = "utf-8"
    body = _body_of(response)
    encodings = response.headers.get_list("content-encoding", split_commas=True)
    is_encoded = any(encoding.strip().lower() not in ("", "identity") for encoding in encodings)
    if is_encoded:
        del response.headers["content-encoding"]
    if response.status_code != _OK:
        response.stream = _CutBody(body, 0 if is_encoded else MAX_ERROR_BYTES)
    elif is_encoded:
        response.stream = _EncodedBody(body)


async def frame_events(response: httpx2.Response) -> None:
    """Frame the events of an answer anew."""
    if response.is_success:
        response.stream = _FramedBody(_body_of(response))


def _body_of(response: httpx2.Response) -> httpx2.AsyncByteStream:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.stream


class _Body(httpx2.AsyncByteStream):
    def __init__(self, received: httpx2.AsyncByteStream) -> None:
        self._received = received

    def _parts(self) -> aclosing[AsyncGenerator[bytes, None]]:
        """Return the received bytes. Closing them early closes the connection."""
        return aclosing(cast(AsyncGenerator[bytes, None], aiter(self._received)))

    async def aclose(self) -> None:
        await self._received.aclose()


class _CutBody(_Body):
    """The beginning of a body. Nothing is read behind it."""

    def __init__(self, received: httpx2.AsyncByteStream, room: int) -> None:
        super().__init__(received)
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = self._room
        if room == 0:
            return
        async with self._parts() as parts:
            async for part in parts:
                yield part[:room]
                room -= len(part)
                if room <= 0:
                    return


class _EncodedBody(_Body):
    """A body that cannot be read. Nothing of it is received."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        raise ValueError("an encoded body, though none was accepted")


class _FramedBody(_Body):
    """The events of a body. Each is one line of data behind its name, if it has one.

    The SDKs copy an event for each of its lines. Line breaks in the data become spaces: in JSON
    they have the same meaning. A JSON error in the place of an event becomes an event.

    Raises ValueError for an event above MAX_EVENT_BYTES.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reader = EventReader()
        async with self._parts() as parts:
            async for part in parts:
                if framed := _frames(reader.feed(part), reader.names):
                    yield framed
        framed = _frames(reader.end(), reader.names)
        if (error := reader.error_body()) is not None:
            framed += _frames([json.dumps(error)], [b""])
        if framed:
            yield framed


def _frames(events: list[str], names: list[bytes]) -> bytes:
    return b"".join(
        (b"event: " + _one_line(name) + b"\n" if name else b"")
        + b"data: "
        + _one_line(event.encode())
        + b"\n\n"
        for event, name in zip(events, names, strict=True)
    )


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ")
