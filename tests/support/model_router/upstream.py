"""A provider that answers at once: `python -m tests.support.model_router.upstream PORT`.

It has OpenAI's chat completions over a bare socket, for benchmarks. A model whose name begins with
`limited` is over its rate limit for an hour, `hundred` answers in a hundred pieces, any other in
one.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

_MODEL = b'"model":"'
_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "instant"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
_LIMITED = json.dumps(
    {
        "error": {
            "message": "Rate limit reached",
            "type": "requests",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }
).encode()


def _stream(pieces: int) -> bytes:
    def choice(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
        return {
            **_CHUNK,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }

    said = [choice({"content": "word "}) for _ in range(pieces)]
    events = [choice({"role": "assistant", "content": ""}), *said, choice({}, "stop")]
    lines = [json.dumps(event) for event in (*events, {**_CHUNK, "choices": [], "usage": _USAGE})]
    return "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode()


def _answer(status: str, kind: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{more}\r\n".encode() + body


_ONE = _answer("200 OK", "text/event-stream", _stream(1))
_HUNDRED = _answer("200 OK", "text/event-stream", _stream(100))
_REFUSAL = _answer("429 Too Many Requests", "application/json", _LIMITED, "retry-after: 3600\r\n")


class _Provider(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is one, but not by its class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found or self._transport is None:
            return
        length = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        if len(rest) < length:
            return
        self._data = b""
        model = rest.partition(_MODEL)[2]
        limited, hundred = model.startswith(b"limited"), model.startswith(b"hundred")
        self._transport.write(_REFUSAL if limited else _HUNDRED if hundred else _ONE)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Provider, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
