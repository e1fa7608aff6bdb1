"""HTTP/1.1 with the standard library: a client that knows nothing of gRPC."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALLOWED_ORIGIN = "https://app.example.com"
"""Its pages may call the gateway of the tests."""
_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """The status, the headers by their lower-case names, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def as_json(self) -> Any:
        return json.loads(self.body)

    @property
    def info(self) -> dict[str, Any]:
        """The `google.rpc.ErrorInfo` of a refusal."""
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        (info,) = [one for one in self.as_json["details"] if one["@type"] == kind]
        return dict(info)

    @property
    def events(self) -> list[Any]:
        """The server-sent events of a stream that has ended."""
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def request(
    address: str,
    verb: str,
    path: str,
    *,
    token: str = "",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request; a `body` that is not bytes is sent as JSON."""
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}

    def ask() -> Answer:
        connection = http.client.HTTPConnection(address, timeout=_SECONDS)
        try:
            connection.request(verb, path, sent, given)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    return await asyncio.to_thread(ask)
