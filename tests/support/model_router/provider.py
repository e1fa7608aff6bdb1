"""A loopback provider with the real wire formats: complete, broken, slow and wrong answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """Return a chunk of a chat completion, as OpenAI sends it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-9",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served-model",
        "choices": [choice],
    }


USAGE_CHUNK = {
    **chunk({}),
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


def chat(*texts: str, finish: str = "stop") -> list[dict[str, Any]]:
    """Return the chunks of a complete text answer."""
    start = chunk({"role": "assistant", "content": ""})
    return [start, *(chunk({"content": text}) for text in texts), chunk({}, finish), USAGE_CHUNK]


def tool_part(
    index: int, arguments: str, call_id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """Return a chunk with a part of a tool call. Only the first part has the id and the name."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    part = {"index": index, "function": function, **({"id": call_id, "type": "function"} if call_id else {})}
    return chunk({"tool_calls": [part]})


def anthropic_answer(*, stop: str = "tool_use") -> list[dict[str, Any]]:
    """Return a thought, a text and a tool call, as Anthropic streams them."""

    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    message = {"id": "msg_7", "type": "message", "role": "assistant", "content": [], "model": "claude-served"}
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 100,
        "output_tokens": 1,
    }
    return [
        {
            "type": "message_start",
            "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
        },
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Let me "},
            {"type": "thinking_delta", "thinking": "think."},
            {"type": "signature_delta", "signature": "c2lnbmVk"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "c2VhbGVk"}),
        *block(
            2,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "I read "},
            {"type": "text_delta", "text": "it."},
        ),
        *block(
            3,
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"path":'},
            {"type": "input_json_delta", "partial_json": '"a.txt"}'},
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 42},
        },
        {"type": "message_stop"},
    ]


def sse(*events: dict[str, Any], done: bool = True) -> Answering:
    """Stream these chunks as a chat completion, and end it as OpenAI does."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return raw_sse("".join([*lines, "data: [DONE]\n\n" if done else ""]))


def named_sse(*events: dict[str, Any]) -> Answering:
    """Stream events with their names, as Anthropic does."""
    return raw_sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


def raw_sse(text: str) -> Answering:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await _begin(request)
        await response.write(text.encode())
        await response.write_eof()
        return response

    return answer


def slowly(*events: dict[str, Any]) -> Answering:
    """Send each chunk in its own packet, cut in the middle of a line.

    The end comes in the last one.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await _begin(request)
        for event in events:
            line = f": still here\r\n\r\ndata: {json.dumps(event)}\r\n\r\n".encode()
            for part in (line[:30], line[30:]):
                await response.write(part)
                await asyncio.sleep(0.01)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return answer


def cut_after(*events: dict[str, Any]) -> Answering:
    """Close the connection during the answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await _begin(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


def error(status: int, body: Any, **headers: str) -> Answering:
    """Answer with an error body: JSON, or text."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html", headers=named)
        return web.json_response(body, status=status, headers=named)

    return answer


def openai_error(status: int, message: str, kind: str, code: str | None, **headers: str) -> Answering:
    return error(
        status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, **headers
    )


RATE_LIMITED = openai_error(429, "Rate limit reached for requests", "requests", "rate_limit_exceeded")
BROKEN = openai_error(500, "The server had an error while processing your request.", "server_error", None)
OVERLOADED = error(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@dataclass
class Stall:
    """Streams these chunks, and then stays silent until the caller hangs up."""

    events: tuple[dict[str, Any], ...] = ()
    begin: bool = True
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        try:
            if self.begin:
                response = await _begin(request)
                for event in self.events:
                    named = f"event: {event['type']}\n" if "type" in event else ""
                    await response.write(f"{named}data: {json.dumps(event)}\n\n".encode())
            self.reached.set()
            await asyncio.Event().wait()
        finally:
            self.hung_up.set()
        raise AssertionError


async def _begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


@dataclass
class LoopbackProvider:
    """Answers each model with its scripted answers, in order. The last one stays."""

    base_url: str = ""
    scripts: dict[str, list[Answering]] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def on(self, model: str, *answers: Answering) -> None:
        self.scripts[model] = list(answers)

    def asked(self, model: str) -> int:
        return sum(body["model"] == model for body in self.bodies)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "call" in request.match_info:  # Gemini names the model in the address.
            body["model"] = request.match_info["call"].partition(":")[0]
        self.bodies.append(body)
        headers = request.headers
        self.keys.append(
            headers.get("x-api-key")
            or headers.get("x-goog-api-key")
            or headers.get("authorization", "").removeprefix("Bearer ")
        )
        script = self.scripts[body["model"]]
        answer = script.pop(0) if len(script) > 1 else script[0]
        return await answer(request)


@asynccontextmanager
async def open_loopback_provider() -> AsyncIterator[LoopbackProvider]:
    provider = LoopbackProvider()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", provider.serve)
    app.router.add_post("/v1/responses", provider.serve)
    app.router.add_post("/v1/messages", provider.serve)
    app.router.add_post("/v1beta/models/{call}", provider.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()
