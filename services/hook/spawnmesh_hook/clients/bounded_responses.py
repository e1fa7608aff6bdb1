"""Bounds everything that a webhook sends, the lines before its answer included.

Upstream: aiohttp has no issue for it. RFC 9110, section 15.2, allows any number of informational
responses before the final one.

Behaviour: aiohttp skips responses of status 1xx without a limit, and reads those that have arrived
without returning to the event loop. It counts neither them nor the frames of a chunked body: four
thousand lines `HTTP/1.1 100` have 68 kB and take a tenth of a second. Nothing public of aiohttp
sees the bytes before they are parsed. So the protocol of the connections is replaced, which
`_factory` of the connector makes.

Why here: a tenant chooses its webhooks, and the other tenants wait while the event loop parses.

Remove it when aiohttp limits informational responses, and has a bound for the bytes of a response.
tests/unit/hook/test_bounded_responses.py fails when it does.
"""

import asyncio
import functools
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

OVERHEAD_BYTES = 64 * 1024
"""The bytes before the body, and as many again for the frames of a chunked one."""
MAX_RESPONSES = 16
"""The responses on a connection: informational ones, and the final one."""
# So many bytes hold 256 responses at most, which take some milliseconds. A read has up to 256 KiB.
_PARSED_BYTES = 4096


class WebhookAnswerTooLarge(aiohttp.ClientError):
    """The response is above its bounds. The connection was aborted."""


class BoundedConnector(aiohttp.TCPConnector):
    """A connector whose connections end with a response above its bounds.

    These are OVERHEAD_BYTES and MAX_RESPONSES up to the head of the final response, and
    `max_body_bytes` more in all. `is_exceeded` says that a response was above them: the error of
    the call may be another one than WebhookAnswerTooLarge, such as that of a request half sent.
    """

    def __init__(self, max_body_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self.is_exceeded = False
        self._max_body_bytes = max_body_bytes
        self._factory = functools.partial(self._new_response)

    def _new_response(self) -> ResponseHandler:
        return _BoundedResponse(self, self._max_body_bytes)


class _BoundedResponse(ResponseHandler):
    """Parses a response in small parts, and aborts the connection when it is above its bounds."""

    def __init__(self, connector: BoundedConnector, max_body_bytes: int) -> None:
        super().__init__(asyncio.get_running_loop())
        self._connector = connector
        self._max_body_bytes = max_body_bytes
        self._left_bytes = OVERHEAD_BYTES
        self._left_responses = MAX_RESPONSES
        self._is_final = False

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        super().feed_data(data, size)
        self._left_responses -= 1
        if not self._is_final and not 100 <= data[0].code < 200:
            self._is_final = True
            self._left_bytes += self._max_body_bytes

    def data_received(self, data: bytes) -> None:
        if self._parser is None or not data:
            # Bytes that are kept for the parser come here again. Without any, it goes on.
            super().data_received(data)
            return
        for start in range(0, len(data), _PARSED_BYTES):
            part = data[start : start + _PARSED_BYTES]
            self._left_bytes -= len(part)
            super().data_received(part)
            if self._left_bytes < 0 or self._left_responses < 0:
                self._refuse()
            if self._parser is None or self.exception() is not None or not self.is_connected():
                return

    def _refuse(self) -> None:
        self._connector.is_exceeded = True
        error = WebhookAnswerTooLarge()
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        # Otherwise the end of the connection replaces the error.
        self._parser = self._payload = None
        if self.transport is not None:
            self.transport.abort()
