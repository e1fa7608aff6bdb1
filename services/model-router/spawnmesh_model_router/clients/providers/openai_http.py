"""Send requests to OpenAI and compatible endpoints, over the connections of the SDK's client.

The headers come from the SDK's client once, and each call adds its body. The SDK itself builds the
options and the URL anew for each call, which takes longer than sending the request.
"""

import json
from typing import Any

import httpx2
import openai
from spawnmesh_core.json_text import require_few_nodes

from spawnmesh_model_router.clients.providers.sse import MAX_EVENT_VALUES

_FIRST_ERROR_STATUS = 300  # No redirect is followed.


class OpenAiHttpError(Exception):
    """An error response that was read. It has the fields of the SDK's exception."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.status_code = response.status_code
        self.response = response
        error = _error_in(response.content)
        self.code, self.type = error.get("code"), error.get("type")


class OpenAiTransport:
    """Sends requests as one client of the SDK would. `http` is the client's own HTTP client."""

    def __init__(self, client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
        self._http = http
        headers = {**client.default_headers, **client.auth_headers}
        self._headers = {name: value for name, value in headers.items() if isinstance(value, str)}
        self._base_url = str(client.base_url).rstrip("/")
        self._timeout = client.timeout
        self._prepared: dict[str, httpx2.Request] = {}

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """Send the body and return the unread response. The caller closes it.

        Raises OpenAiHttpError for an error response, and openai.APIConnectionError if there is
        none.
        """
        prepared = self._prepared.get(path) or self._prepare(path)
        content = json.dumps(
            {**body, "stream": True}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        request = _with_content(prepared, content.encode())
        try:
            response = await self._http.send(request, stream=True)
        except httpx2.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except httpx2.HTTPError as error:
            raise openai.APIConnectionError(request=request) from error
        if response.status_code >= _FIRST_ERROR_STATUS:
            await response.aread()
            raise OpenAiHttpError(response)
        return response

    def _prepare(self, path: str) -> httpx2.Request:
        url = f"{self._base_url}{path}"
        prepared = self._http.build_request("POST", url, headers=self._headers, timeout=self._timeout)
        del prepared.headers["content-length"]  # It differs for each body.
        self._prepared[path] = prepared
        return prepared


def _with_content(prepared: httpx2.Request, content: bytes) -> httpx2.Request:
    """Return the prepared request with a body.

    It copies the prepared headers, whose encoding is known. Otherwise httpx2 would search all of
    them for it.
    """
    headers = prepared.headers.copy()
    headers["content-length"] = str(len(content))
    stream = httpx2.ByteStream(content)
    request = httpx2.Request("POST", prepared.url, stream=stream, extensions=prepared.extensions)
    request.headers = headers
    return request


def _error_in(content: bytes) -> dict[str, Any]:
    """Return the error in a JSON body; empty for any other body."""
    try:
        require_few_nodes(content.decode(errors="replace"), MAX_EVENT_VALUES)
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else body
    return error if isinstance(error, dict) else {}
