"""Histories of coding agents in the transcript service, and what their contexts leave out."""

import json
import re
from collections.abc import Sequence
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb

from tests.support.transcript.tier import Tiered

NOTE = re.compile(
    r"\[Left out: (file_[0-9a-z_]+) \| ([0-9,]+) bytes\. To read it, call transcript_describe\.\]"
)
OUTPUT = re.compile(
    r"\[Tool output (file_[0-9a-z_]+) \| tool=\S+ \| ([0-9,]+) bytes\]\n(?:path: \S+\n)?"
    r"To read it, call transcript_describe with that file_id\."
)
IMAGE = re.compile(r"\[Image (file_[0-9a-z_]+) \| image/png \| ([0-9,]+) bytes, not shown again\]")


async def append_all(tiered: Tiered, bodies: Sequence[entry_pb.EntryBody]) -> None:
    """Append the messages in order, those of users as a client."""
    claim = await tiered.session.acquire(1)
    waiting: list[entry_pb.EntryBody] = []
    for body in (*bodies, None):
        is_user = body is not None and body.message.role == content_pb.ROLE_USER
        if waiting and (body is None or is_user or len(waiting) >= 100):
            await tiered.session.append(waiting, claim=claim)
            waiting = []
        if is_user:
            await tiered.session.append([body])
        elif body is not None:
            waiting.append(body)


def check_pairs(context: pb.AssembleContextResponse) -> None:
    """Check that each result follows its call, in the order of the calls."""
    wanted: list[str] = []
    for entry in context.entries:
        message = entry.body.message
        if message.role == content_pb.ROLE_TOOL_RESULT:
            assert message.tool_call_id == wanted.pop(0)
        else:
            assert not wanted
            wanted = [
                block.tool_call.tool_call_id for block in message.content if block.HasField("tool_call")
            ]
    assert not wanted


async def undone(tiered: Tiered, shown: entry_pb.Entry, stored: entry_pb.Entry) -> content_pb.Message:
    """Return the shown message with what its notes name, and with the thinking that is left out."""
    message = content_pb.Message()
    message.CopyFrom(shown.body.message)
    blocks = list(message.content)
    if not any(block.HasField("thinking") for block in blocks):
        for index, block in enumerate(stored.body.message.content):
            if block.HasField("thinking"):
                blocks.insert(index, block)
    for block in blocks:
        if block.HasField("tool_call"):
            call = json.loads(block.tool_call.block_json)
            call["arguments"] = await _strings_undone(tiered, call["arguments"])
            block.tool_call.block_json = json.dumps(call, separators=(",", ":"))
        elif found := OUTPUT.fullmatch(block.text.text) or IMAGE.fullmatch(block.text.text):
            described = await _described(tiered, found)
            if described.mime_type == "text/plain":
                block.text.text = described.content.data.decode()
            else:
                block.image.mime_type, block.image.data = described.mime_type, described.content.data
    copies = [content_pb.ContentBlock.FromString(block.SerializeToString()) for block in blocks]
    del message.content[:]
    message.content.extend(copies)
    return message


async def _described(tiered: Tiered, found: re.Match[str]) -> file_pb.DescribeFileResponse:
    """Return the complete file that a note names, and check the size in the note."""
    part = {"offset": 0, "length": 500 * 1024}
    described = await tiered.describe(found[1], expand=True, bytes=part)
    assert (f"{described.size_bytes:,}", described.content.truncated) == (found[2], False)
    return described


async def _strings_undone(tiered: Tiered, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: await _strings_undone(tiered, member) for key, member in value.items()}
    if isinstance(value, list):
        return [await _strings_undone(tiered, member) for member in value]
    found = NOTE.fullmatch(value) if isinstance(value, str) else None
    return (await _described(tiered, found)).content.data.decode() if found else value
