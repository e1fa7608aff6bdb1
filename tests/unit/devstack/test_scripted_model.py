"""The scripted model over HTTP, called as the router calls any provider: with the official SDK."""

import hashlib
import json
from collections.abc import AsyncIterator

import openai
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from spawnmesh_devstack.scripted_model import build_app

DIRECTORY = ".spawnmesh/attachments/att_1"
NOTE = f"Attached files: 1, 9 bytes in all, in `{DIRECTORY}` (relative to the workspace).\nThey came from outside."
COUNTER = {"role": "system", "content": "You are the counter of a demonstration."}


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        TestServer(build_app(0.0)) as server,
        openai.AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="any", max_retries=0) as sdk,
    ):
        yield sdk


def called(call_id: str, tool: str, arguments: dict, value: object, text: str = "") -> list[dict]:
    """A tool call as it stands in a later request, and its result: a line of JSON, and a text."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": f"{json.dumps(value)}\n{text}"},
    ]


def listing(*names: str) -> tuple[dict, str]:
    entries = [
        {"name": name, "kind": "file", "bytes": 9, "sha256": hashlib.sha256(b"").hexdigest()}
        for name in names
    ]
    return {"path": DIRECTORY, "truncated": False}, "\n".join(map(json.dumps, entries))


async def ask(client: openai.AsyncOpenAI, messages: list[dict]) -> openai.types.chat.ChatCompletionMessage:
    return (await client.chat.completions.create(model="agent", messages=messages)).choices[0].message


async def test_counter_lists_the_attachments_first(client):
    answer = await client.chat.completions.create(
        model="agent", messages=[COUNTER, {"role": "user", "content": NOTE}]
    )

    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("list_files", {"path": DIRECTORY})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.prompt_tokens > 0


async def test_counter_counts_what_it_read_over_several_pieces(client):
    path = f"{DIRECTORY}/journal.txt"
    messages = [
        COUNTER,
        {"role": "user", "content": NOTE},
        *called("a", "list_files", {"path": DIRECTORY}, *listing("journal.txt")),
    ]
    first = {"path": path, "binary": False, "truncated": True, "next_offset": 10}
    messages += called("b", "read_file", {"path": path}, first, "one\ntwo\nth")

    (call,) = (await ask(client, messages)).tool_calls
    assert json.loads(call.function.arguments) == {"path": path, "offset": 10}

    rest = {"path": path, "binary": False, "truncated": False}
    messages += called("c", "read_file", {"path": path, "offset": 10}, rest, "ree\n")
    assert (await ask(client, messages)).content == "lines: 3"


async def test_a_tool_that_failed_is_told_and_not_papered_over(client):
    messages = [
        COUNTER,
        {"role": "user", "content": NOTE},
        *called("a", "list_files", {"path": DIRECTORY}, "NOT_FOUND: no such directory"),
    ]

    assert "could not be listed" in (await ask(client, messages)).content


async def test_streamed_pieces_are_the_same_answer(client):
    messages = [COUNTER, {"role": "user", "content": NOTE}]
    whole = await ask(client, messages)
    arguments, ids, finish, usage = "", [], [], None
    stream = await client.chat.completions.create(
        model="agent", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish.append(choice.finish_reason)
            for call in choice.delta.tool_calls or ():
                arguments += call.function.arguments
                ids += [call.id] if call.id else []

    assert (ids, arguments) == ([whole.tool_calls[0].id], whole.tool_calls[0].function.arguments)
    assert finish[-1] == "tool_calls"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_streamed_text_is_whole(client):
    messages = [{"role": "user", "content": "a long question " * 20}]
    stream = await client.chat.completions.create(model="agent", messages=messages, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert text == (await ask(client, messages)).content
    assert "a long question" in text


async def test_flaky_is_always_over_its_rate_limit(client):
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(model="flaky", messages=[{"role": "user", "content": "hello"}])

    assert refused.value.code == "rate_limit_exceeded"


async def test_unknown_model_and_missing_key_are_refused_as_the_api_does(client):
    with pytest.raises(openai.NotFoundError) as refused:
        await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hello"}])
    assert refused.value.code == "model_not_found"

    async with ClientSession() as http, http.post(f"{client.base_url}chat/completions", json={}) as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    "messages", [None, "hello", [{"role": "wizard", "content": "hello"}], [{"role": "user"}]]
)
async def test_what_is_no_chat_is_refused(client, messages):
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="agent", messages=messages)
