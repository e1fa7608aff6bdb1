"""The rules for every request and response, whichever page it is for."""

from collections.abc import Collection

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
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""The headers of a response that has none of its own of this name."""

_SAFE_METHODS = ("GET", "HEAD")


class Guard:
    """Refuses requests for other hosts, changes that other sites ask for, and large bodies; adds
    the headers that confine what a browser does with a page.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], is_https: bool, max_body_bytes: int) -> None:
        self._app = app
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

        refusal = self._refusal(scope["method"], Headers(scope=scope))
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
        if int(headers.get("content-length") or 0) > self._max_body_bytes:
            return PlainTextResponse(f"The form has more than {self._max_body_bytes:,} bytes.\n", 413)
        return None


def _is_own_site(headers: Headers, own_origin: str) -> bool:
    """Return whether a page of the console sent the request. Browsers say so in one of two ways."""
    site = headers.get("sec-fetch-site")
    return headers.get("origin") == own_origin if site is None else site == "same-origin"


class BodyTooLarge(Exception):
    """The body of a request has more bytes than are read."""


async def answer_too_large(_request: Request, _error: Exception) -> Response:
    """Return the answer to a body that is too large, where no page has one of its own."""
    return PlainTextResponse("The form is too large.\n", 413)


def bounded(receive: Receive, max_bytes: int) -> Receive:
    """Return `receive` for a body of so many bytes. It raises BodyTooLarge at a longer one."""
    left = max_bytes

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise BodyTooLarge
        return message

    return receive_bounded
