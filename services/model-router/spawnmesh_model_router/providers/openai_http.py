"""Requests to OpenAI and its kin: the SDK's client says once what goes with every request, and each call adds its body.

The SDK puts a request together anew for every call, from a model of its options to the parts of its address, which takes longer than to send it.
"""

import json
from typing import Any

import httpx2
import openai

_FIRST_ERROR_STATUS = 400


class Refused(Exception):
    """An answer that is an error, read to its end: what the SDK's exception for it says, without the models that the SDK makes of it."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.status_code = response.status_code
        self.response = response
        said = _said(response.content)
        self.code, self.type = said.get("code"), said.get("type")


class OpenAiLine:
    """Sends what one client of the SDK would, over the same connections. `http` is the one the client was made with."""

    def __init__(self, client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
        self._http = http
        told = {**client.default_headers, **client.auth_headers}
        self._headers = {name: value for name, value in told.items() if isinstance(value, str)}
        self._base_url = str(client.base_url).rstrip("/")
        self._timeout = client.timeout
        self._prepared: dict[str, httpx2.Request] = {}

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """The answer, of which nothing is read yet; the caller closes it.

        Raises Refused for one that is an error from the start, openai.APIConnectionError where there is none.
        """
        prepared = self._prepared.get(path) or self._prepare(path)
        content = json.dumps({**body, "stream": True}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        request = _with_content(prepared, content.encode())
        try:
            response = await self._http.send(request, stream=True)
        except httpx2.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except httpx2.HTTPError as error:
            raise openai.APIConnectionError(request=request) from error
        if response.status_code >= _FIRST_ERROR_STATUS:
            await response.aread()
            raise Refused(response)
        return response

    def _prepare(self, path: str) -> httpx2.Request:
        url = f"{self._base_url}{path}"
        prepared = self._http.build_request("POST", url, headers=self._headers, timeout=self._timeout)
        del prepared.headers["content-length"]  # It is each body's own.
        self._prepared[path] = prepared
        return prepared


def _with_content(prepared: httpx2.Request, content: bytes) -> httpx2.Request:
    """The request with a body. Its headers are the prepared ones, whose encoding is known: else it would be looked for in all of them."""
    headers = prepared.headers.copy()
    headers["content-length"] = str(len(content))
    stream = httpx2.ByteStream(content)
    request = httpx2.Request("POST", prepared.url, stream=stream, extensions=prepared.extensions)
    request.headers = headers
    return request


def _said(content: bytes) -> dict[str, Any]:
    """The error that a body of JSON tells; empty for any other body."""
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    said = body.get("error", body) if isinstance(body, dict) else body
    return said if isinstance(said, dict) else {}
