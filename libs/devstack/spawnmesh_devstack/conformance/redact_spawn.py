"""Area `redact_spawn`: `given.block` is a tool call of a model that a run appends.

The service answers with the bytes that it stores, so what is in no answer is in no row.
"""

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message as AnyMessage
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1.entry_pb2 import Entry

from spawnmesh_devstack.conformance.cases import (
    REMARKS,
    BadCase,
    Case,
    CaseResult,
    list_of,
    object_of,
    text_of,
)
from spawnmesh_devstack.conformance.compare import shown
from spawnmesh_devstack.conformance.mesh import MeshAccess
from spawnmesh_devstack.conformance.scratch_transcript import open_scratch_transcript
from spawnmesh_devstack.conformance.tool_calls import tool_call

_CALL_ID = "call_1"


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `must_not_contain`: texts that occur nowhere in the answer, also not in JSON inside of
    strings.

    A block that the service refuses is not stored, and the case counts as failed.
    """
    given = object_of(case.given, "given", {"block", *REMARKS})
    block = object_of(given.get("block"), "block")
    forbidden = _forbidden(case.expect)
    call = tool_call(block, text_of(block.get("id"), "block.id").strip() or _CALL_ID)
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)]
    )
    async with open_scratch_transcript(mesh) as transcript:
        [seq] = await transcript.append([message])
        stored = await transcript.entries()
        context = await transcript.context()
    if not any(entry.seq == seq and _has_call(entry) for entry in stored):
        return CaseResult("came a transcript without the call")
    texts = [text for answer in (*stored, context) for text in _texts(answer)]
    found = [text for text in forbidden if any(text in one for one in texts)]
    return CaseResult(f"came back with {shown(found)}" if found else "")


def _forbidden(expect: Any) -> list[str]:
    expected = object_of(expect, "expect", {"must_not_contain"})
    texts = expected.get("must_not_contain")
    listed = [
        text_of(text, "must_not_contain")
        for text in ([texts] if isinstance(texts, str) else list_of(texts, "must_not_contain"))
    ]
    if not listed or not all(listed):
        raise BadCase("must_not_contain names no text")
    return listed


def _has_call(entry: Entry) -> bool:
    return any(block.HasField("tool_call") for block in entry.body.message.content)


def _texts(answer: AnyMessage) -> Iterator[str]:
    """Yield every string of an answer, and every string in JSON inside of a string."""
    for field, value in answer.ListFields():
        values = value if field.is_repeated else [value]
        for one in values:
            if isinstance(one, AnyMessage):
                yield from _texts(one)
            elif isinstance(one, bytes):
                yield one.decode("utf-8", "replace")
            elif isinstance(one, str):
                yield from _unfolded(one)


def _unfolded(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _unfolded(key)
            yield from _unfolded(member)
    elif isinstance(value, list):
        for item in value:
            yield from _unfolded(item)
    elif isinstance(value, str):
        yield value
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return
        yield from _unfolded(inner)
