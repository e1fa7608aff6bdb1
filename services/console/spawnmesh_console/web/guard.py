"""The rules for every request and response, whichever page it is for."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types spawnmesh"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""The headers of a response that has none of its own of this name.

A stricter referrer policy would make the origin of our own forms `null`. With HTTP on another
machine, browsers say by nothing else that a form is ours.
"""

_SAFE_METHODS = ("GET", "HEAD")
_BODY_SECONDS = 60.0
_SLOWEST_BYTES_PER_SECOND = 4096


class BodyTooLarge(Exception):
    """The body of a request has more bytes than are read."""


class BodyTooSlow(Exception):
    """The body of a request did not come in time."""


async def answer_too_large(_request: Request, _error: Exception) -> Response:
    """Return the answer to a body that is too large, where there are no pages."""
    return PlainTextResponse("The form is too large.\n", 413)


Answer = Callable[[Request, Exception], Awaitable[Response]]


class Guard:
    """Refuses requests for other hosts, changes that other sites ask for, and large bodies; adds
    the headers that confine what a browser does with a page.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        is_https: bool,
        max_body_bytes: int,
        too_large: Answer = answer_too_large,
    ) -> None:
        self._app = app
        self._too_large = too_large
        self._hosts = frozenset(hosts)
        self._scheme = "https" if is_https else "http"
        self._headers = dict(_HEADERS)
        if is_https:
            self._headers["strict-transport-security"] = "max-age=31536000"
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refusal: Response | None = self._refusal(scope["method"], headers)
        if refusal is None and int(headers.get("content-length") or 0) > self._max_body_bytes:
            refusal = await self._too_large(Request({**scope, "app": self._app}), BodyTooLarge())
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, bounded(receive, self._max_body_bytes), send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            # Another name can lead here: then the page of another site would read this one.
            return PlainTextResponse("The console is not served under this name.\n", 421)
        if method not in _SAFE_METHODS and not _is_own_site(headers, f"{self._scheme}://{host}"):
            return PlainTextResponse("Another site cannot ask for a change.\n", 403)
        return None


def _is_own_site(headers: Headers, own_origin: str) -> bool:
    """Return whether a page of the console sent the request. Browsers say so in one of two ways."""
    site = headers.get("sec-fetch-site")
    return headers.get("origin") == own_origin if site is None else site == "same-origin"


def bounded(receive: Receive, max_bytes: int, seconds: float = _BODY_SECONDS) -> Receive:
    """Return `receive` for a body of so many bytes. It raises BodyTooLarge at a longer one.

    It raises BodyTooSlow if nothing comes for so many seconds, or the whole is slower than 4 KiB a
    second. Behind the end of the body it waits without a limit: for the browser to go away.
    """
    count, is_read, begin = 0, False, 0.0

    async def receive_bounded() -> Message:
        nonlocal count, is_read, begin
        if is_read:
            return await receive()
        now = asyncio.get_running_loop().time()
        begin = begin or now
        slowest = begin + seconds + count / _SLOWEST_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(min(now + seconds, slowest)):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow from None
        is_read = not message.get("more_body", False)
        count += len(message.get("body", b""))
        if count > max_bytes:
            raise BodyTooLarge
        return message

    return receive_bounded
