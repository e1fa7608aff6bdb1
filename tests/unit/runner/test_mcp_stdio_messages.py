"""The output of an MCP server's process: its messages are found, and other tasks have their turns."""

import asyncio
import json
import math
from contextlib import suppress

import anyio
import pytest
from mcp.shared.message import SessionMessage
from spawnmesh_runner.clients.mcp.config import MAX_MESSAGE_VALUES
from spawnmesh_runner.clients.mcp.stdio_messages import (
    MAX_STRAY_BYTES,
    MAX_STRAY_LINES,
    forward_messages,
)

MESSAGE = json.dumps({"jsonrpc": "2.0", "method": "notifications/message"}).encode() + b"\n"
TOO_MANY = (
    f"it wrote more than {MAX_STRAY_LINES} lines, or {MAX_STRAY_BYTES} bytes, in a row that are no messages"
)


async def forwarded(written: bytes) -> tuple[str, int, int]:
    """Return the result, the number of messages, and that of the turns that another task had.

    All output is there at the start, so that the reader waits for nothing.
    """
    output = asyncio.StreamReader()
    output.feed_data(written)
    output.feed_eof()
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    with incoming, received:
        excess = await forward_messages(output, incoming)
        count = received.statistics().current_buffer_used
    other.cancel()
    with suppress(asyncio.CancelledError):
        await other
    return excess, count, turns


@pytest.mark.parametrize("line", [b"\n", b" \r\n", b"no message\n", b'{"jsonrpc": "2.0"}\n', b"[]\n"])
async def test_lines_that_are_no_messages_leave_others_their_turns_and_have_a_bound(line: bytes) -> None:
    excess, count, turns = await forwarded(line * MAX_STRAY_LINES + MESSAGE)
    assert (excess, count) == ("", 1)
    assert turns >= MAX_STRAY_LINES // 16
    excess, count, turns = await forwarded(line * (MAX_STRAY_LINES + 1) + MESSAGE)
    assert (excess, count) == (TOO_MANY, 0)


async def test_long_lines_that_are_no_messages_leave_others_their_turns_and_have_a_bound() -> None:
    line = b"[" + b"0," * (MAX_STRAY_BYTES // 20) + b"0]\n"
    excess, _, turns = await forwarded(line * 9)
    assert (excess, turns >= 9) == ("", True)
    excess, _, turns = await forwarded(line * 1_000)
    assert (excess, turns < 20) == (TOO_MANY, True)


async def test_a_message_of_too_many_values_ends_the_connection_and_a_long_text_does_not() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a,b;" * 250_000}]}}
    assert (await forwarded(json.dumps(message).encode() + b"\n"))[:2] == ("", 1)
    message["result"] = {"content": [{}] * (MAX_MESSAGE_VALUES + 1)}
    excess, count, _ = await forwarded(json.dumps(message).encode() + b"\n" + MESSAGE)
    assert (excess, count) == (f"it wrote a message of more than {MAX_MESSAGE_VALUES} values", 0)


async def test_lines_between_messages_do_not_add_up() -> None:
    written = (b"no message\n" * 900 + MESSAGE) * 3
    assert (await forwarded(written))[:2] == ("", 3)


async def test_message_is_found_across_reads_and_without_others_around_it() -> None:
    large = json.dumps({"jsonrpc": "2.0", "method": "x" * 200_000}).encode()
    assert (await forwarded(large + b"\n" + MESSAGE))[:2] == ("", 2)
