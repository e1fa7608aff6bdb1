"""A provider that streams the time: `python live_provider.py PORT`.

It has OpenAI's chat completions over a bare socket, and sends 50 pieces in a second. A piece is the
time at which it leaves this process, in nanoseconds of the machine's monotonic clock, and a space.
The number at the end of a model's name is that of its pieces.
"""

import asyncio
import json
import re
import sys
from time import monotonic_ns
from typing import cast

import uvloop

PIECES_PER_SECOND = 50
_MODEL = re.compile(rb'"model": ?"[a-z-]*(\d+)"')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "teller"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}


def _event(chunk: dict[str, object]) -> bytes:
    data = f"data: {json.dumps({**_CHUNK, **chunk})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _choice(delta: dict[str, str], finish: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})


def _end() -> bytes:
    done = b"data: [DONE]\n\n"
    usage = _event({"choices": [], "usage": _USAGE})
    return _choice({}, "stop") + usage + b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)


class _Provider(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is one, but not by its class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()

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
        model = _MODEL.search(rest)
        assert model is not None
        self._answer = asyncio.create_task(_say(self._transport, int(model[1])))


async def _say(transport: asyncio.WriteTransport, count: int) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    transport.write(_HEAD + _choice({"role": "assistant", "content": ""}))
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / PIECES_PER_SECOND - loop.time()))
        transport.write(_choice({"content": f"{monotonic_ns()} "}))
    transport.write(_end())


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Provider, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
