"""The messages in the output of an MCP server that is a process, one a line."""

import asyncio
import json
from contextlib import suppress

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError
from spawnmesh_core.json_text import TooManyNodes, require_few_nodes

from spawnmesh_runner.clients.mcp.config import MAX_MESSAGE_BYTES, MAX_MESSAGE_VALUES

MAX_STRAY_LINES = 1000
"""The lines in a row that are no messages, blank ones included. Some programs also log here."""
MAX_STRAY_BYTES = 1024 * 1024
"""The bytes of such lines in a row."""
_CHUNK_BYTES = 64 * 1024
# To read so much takes about a millisecond. Then the other runs of the process have their turn.
_LINES_A_TURN = 16
_BYTES_A_TURN = 64 * 1024

Incoming = MemoryObjectSendStream[SessionMessage | Exception]


async def forward_messages(output: asyncio.StreamReader, incoming: Incoming) -> str:
    """Forward the messages until the output ends, nothing receives them, or a bound is passed.

    Return what is above the bound, or nothing. Other tasks have their turns meanwhile, whatever the
    server writes.
    """
    held = bytearray()
    stray_lines = stray_bytes = lines_read = bytes_read = 0
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        while chunk := await output.read(_CHUNK_BYTES):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                held += line
                size = len(held)
                if _is_wide(held):
                    return f"it wrote a message of more than {MAX_MESSAGE_VALUES} values"
                message = _parsed(bytes(held)) if held else None
                held.clear()
                if message is not None:
                    stray_lines = stray_bytes = 0
                    await incoming.send(message)
                else:
                    stray_lines, stray_bytes = stray_lines + 1, stray_bytes + size
                    if stray_lines > MAX_STRAY_LINES or stray_bytes > MAX_STRAY_BYTES:
                        return (
                            f"it wrote more than {MAX_STRAY_LINES} lines, or {MAX_STRAY_BYTES} bytes,"
                            " in a row that are no messages"
                        )
                lines_read, bytes_read = lines_read + 1, bytes_read + size
                if lines_read >= _LINES_A_TURN or bytes_read >= _BYTES_A_TURN:
                    lines_read = bytes_read = 0
                    await asyncio.sleep(0)
            held += rest
            if len(held) > MAX_MESSAGE_BYTES:
                return f"it wrote a message of more than {MAX_MESSAGE_BYTES} bytes"
    return ""


def _is_wide(line: bytearray) -> bool:
    if len(line) <= MAX_MESSAGE_VALUES:
        return False
    try:
        require_few_nodes(line.decode(errors="replace"), MAX_MESSAGE_VALUES)
    except TooManyNodes:
        return True
    return False


def _parsed(line: bytes) -> SessionMessage | None:
    """Return the message of a line; an error for a malformed response; None for other output."""
    with suppress(ValidationError):
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    with suppress(ValueError, RecursionError):
        request_id = _id_of(line)
        if request_id is not None:
            problem = ErrorData(code=PARSE_ERROR, message="malformed answer")
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=problem))
    return None


def _id_of(line: bytes) -> int | str | None:
    value = json.loads(line)
    request_id = value.get("id") if isinstance(value, dict) and "method" not in value else None
    return request_id if isinstance(request_id, int | str) else None
