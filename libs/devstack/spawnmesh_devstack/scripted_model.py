"""A model server for machines without a key: `python -m spawnmesh_devstack.scripted_model --port N
[--pause SECONDS]`. The pause is between two pieces of an answer.

It speaks the wire format of OpenAI's chat completions. The model `agent` plays the demo's agents by
rule. `flaky` is always over its rate limit. `opener` reads the attached files and then is over its
limit, so that the next model can answer from them. `slow` thinks, and counts for three minutes, so
that there is time to interrupt it, and then answers the message that came meanwhile.
"""

import argparse
import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from spawnmesh_devstack.conversation import Conversation, read_conversation
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.scripted_agents import Reply, open_files, play

AGENT, FLAKY, OPENER, SLOW = "agent", "flaky", "opener", "slow"

PAUSE_SECONDS = 0.02
"""The pause between two pieces of an answer, so that one can see the answer grow."""

_MAX_REQUEST_BYTES = 64 * 1024 * 1024
_CHARACTERS_PER_TOKEN = 4
_PIECE_CHARACTERS = 48
_SLOW_PAUSE_SECONDS = 0.5
_PAUSE = web.AppKey("pause", float)
_THOUGHT = "I begin at one and go on until somebody stops me."
_INTERRUPTED = "You were interrupted here."


def build_app(pause_seconds: float = PAUSE_SECONDS) -> web.Application:
    """Return the server's application with one route; it keeps no state between requests."""
    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    app[_PAUSE] = pause_seconds
    app.router.add_post("/v1/chat/completions", _complete)
    return app


async def _complete(http: web.Request) -> web.StreamResponse:
    if not http.headers.get("Authorization", "").startswith("Bearer "):
        return _refusal(401, "You did not provide an API key.", "invalid_request_error", "invalid_api_key")
    try:
        request = await http.json()
        model = request["model"]
        conversation = read_conversation(request)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _refusal(400, "The request is not a chat completion request.", "invalid_request_error", None)
    if model not in (AGENT, FLAKY, OPENER, SLOW):
        return _refusal(
            404, f"The model `{model}` does not exist.", "invalid_request_error", "model_not_found"
        )
    players = {AGENT: play, OPENER: open_files, SLOW: _count}
    reply = players[model](conversation) if model in players else None
    if reply is None:
        text = f"Rate limit reached for {model} on requests per min (RPM): Limit 0, Used 0, Requested 1."
        return _refusal(429, text, "requests", "rate_limit_exceeded")
    if not request.get("stream"):
        return web.json_response(completion(request, reply))
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await answer.prepare(http)
    for chunk in chunks(request, reply):
        await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await asyncio.sleep(_SLOW_PAUSE_SECONDS if model == SLOW else http.app[_PAUSE])
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


def _count(conversation: Conversation) -> Reply:
    """Count, unless an interrupt ended that: then repeat the newest text."""
    if conversation.since(_INTERRUPTED) is None:
        return Reply(" ".join(str(number) for number in range(1, 4000)), thinking=_THOUGHT)
    return Reply(f"You said: {conversation.said()[-1]}")


def completion(request: dict[str, Any], reply: Reply) -> dict[str, Any]:
    """Return the answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = tool_calls(request, reply)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(request, reply)}


def chunks(request: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    """Return the answer in pieces, as the API streams it; the last one is the usage, if the request
    wants it.
    """
    head = _head(request, "chat.completion.chunk")
    wants_usage = (request.get("stream_options") or {}).get("include_usage", False)
    usage: dict[str, Any] = {"usage": None} if wants_usage else {}

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice], **usage}

    yield chunk({"role": "assistant", "content": None if reply.calls else "", "refusal": None})
    for piece in _pieces(reply.thinking):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(reply.text):
        yield chunk({"content": piece})
    for index, call in enumerate(tool_calls(request, reply)):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in _pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish_reason(reply))
    if wants_usage:
        yield {**head, "choices": [], "usage": _usage(request, reply)}


def tool_calls(request: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
    """Return the calls with ids; the same request gives the same ids."""
    name = _head(request, "")["id"].removeprefix("chatcmpl-")
    return [
        {
            "id": f"call_{name}{index}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(reply.calls)
    ]


def _head(request: dict[str, Any], kind: str) -> dict[str, Any]:
    name = hashlib.sha256(json.dumps(request["messages"]).encode()).hexdigest()[:24]
    return {"id": f"chatcmpl-{name}", "object": kind, "created": int(time.time()), "model": request["model"]}


def _usage(request: dict[str, Any], reply: Reply) -> dict[str, int]:
    """Return an estimate, because no tokens are read."""
    prompt = len(json.dumps(request["messages"])) // _CHARACTERS_PER_TOKEN
    written = reply.thinking + reply.text + json.dumps([dict(call.arguments) for call in reply.calls])
    answer = max(1, len(written) // _CHARACTERS_PER_TOKEN)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE_CHARACTERS] for start in range(0, len(text), _PIECE_CHARACTERS)]


def _refusal(status: int, message: str, kind: str, code: str | None) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


def main() -> None:
    """Serve on loopback until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.scripted_model", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pause", type=float, default=PAUSE_SECONDS)
    given = parser.parse_args()
    web.run_app(build_app(given.pause), host=LOOPBACK, port=given.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
