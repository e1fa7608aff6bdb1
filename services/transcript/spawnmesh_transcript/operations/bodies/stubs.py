"""Create the stubs of large tool results, and find large images, in entries as they are stored.

CPU work only.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_transcript.domain.entries import NewEntry
from spawnmesh_transcript.domain.large_results import (
    MAX_PAYLOAD_BYTES,
    File,
    Stub,
    about_block_json,
    is_large,
    line_count_of,
)
from spawnmesh_transcript.domain.stub_text import shown_mime_type, shown_tool_name, stub_text
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.operations.bodies.tokens import block_token_count, count_tokens
from spawnmesh_transcript.operations.bodies.well_formed import serialize

TEXT_TYPE = "text/plain"

_LEAST_BLOCK_BYTES = 256  # A shorter block is hardly longer than its reference.


_IMAGE_ROLES = (Role.USER, Role.ASSISTANT)


@dataclass(frozen=True, slots=True)
class LargeResult:
    """A large tool result at `place` of its batch."""

    place: int
    body: pb.EntryBody
    call_id: str
    token_count: int
    token_vocabulary: Vocabulary


def large_results(entries: Sequence[NewEntry], *, large_payload_bytes: int) -> list[LargeResult]:
    """Return the entries that are large results. A body below the limit is not parsed."""
    found: list[LargeResult] = []
    for place, entry in enumerate(entries):
        if entry.role is Role.TOOL_RESULT and len(entry.body) >= large_payload_bytes:
            body = pb.EntryBody.FromString(entry.body)
            sizes = [len(payload_of(block) or b"") for block in body.message.content]
            if is_large(sizes, large_payload_bytes=large_payload_bytes):
                found.append(
                    LargeResult(place, body, entry.answers, entry.token_count, entry.token_vocabulary)
                )
    return found


def image_stubs(entries: Sequence[NewEntry], *, large_payload_bytes: int) -> list[Stub]:
    """Return files for the images of user and assistant messages whose images are large together.

    They are never read as references.
    """
    found: list[Stub] = []
    for place, entry in enumerate(entries):
        if entry.role in _IMAGE_ROLES and len(entry.body) >= large_payload_bytes:
            content = pb.EntryBody.FromString(entry.body).message.content
            images = [
                (index, block, block.image.data)
                for index, block in enumerate(content)
                if block.HasField("image")
            ]
            if is_large([len(data) for _, _, data in images], large_payload_bytes=large_payload_bytes):
                files = [_file(index, block, data, "", "") for index, block, data in images if _is_file(data)]
                found.append(Stub(place, None, entry.token_count, tuple(files), entry.token_vocabulary))
    return [stub for stub in found if stub.files]


def calls_in(entries: Iterable[NewEntry]) -> dict[str, str]:
    """Return the tool calls that the entries make, as JSON by trimmed id; of two with one id, the
    later.
    """
    found: dict[str, str] = {}
    for entry in entries:
        if entry.calls:
            found |= calls_of(entry.body)
    return found


def calls_of(body: bytes) -> dict[str, str]:
    """Return the tool calls in a stored message."""
    message = pb.EntryBody.FromString(body).message
    calls = (block.tool_call for block in message.content if block.HasField("tool_call"))
    return {call.tool_call_id.strip(): call.block_json for call in calls}


def make_stubs(results: Iterable[LargeResult], calls: Mapping[str, str]) -> list[Stub]:
    """Return a stub for each result that gets shorter by it.

    `calls` are the known calls that they answer.
    """
    stubs = [
        _stub(result, about_block_json(_call_made(result) or calls.get(result.call_id, "")))
        for result in results
    ]
    return [stub for stub in stubs if stub.files]


def _call_made(result: LargeResult) -> str:
    """Return the call that the result itself holds, empty if there is none.

    A result holds its call if a plugin rewrote the one that the model asked for.
    """
    made = (
        block.tool_call.block_json for block in result.body.message.content if block.HasField("tool_call")
    )
    return next(made, "")


def payload_of(block: content_pb.ContentBlock) -> bytes | None:
    """Return the bytes of a text or an image, None for any other block."""
    match block.WhichOneof("block"):
        case "text":
            return block.text.text.encode()
        case "image":
            return block.image.data
        case _:
            return None


def _stub(result: LargeResult, about: str) -> Stub:
    body = pb.EntryBody(message=result.body.message)
    message = body.message
    files: list[File] = []
    token_count = result.token_count
    for index, block in enumerate(message.content):
        payload = payload_of(block)
        if payload is None or not _is_file(payload):
            continue
        file = _file(index, block, payload, message.tool_name, about)
        reference = stub_text(file.file_id, tool_name=message.tool_name, size_bytes=len(payload), about=about)
        saved = block_token_count(block, result.token_vocabulary) - count_tokens(
            reference, result.token_vocabulary
        )
        if saved > 0:
            files.append(file)
            token_count -= saved
            block.text.text = reference
    return Stub(result.place, serialize(body), token_count, tuple(files), result.token_vocabulary)


def _is_file(payload: bytes) -> bool:
    return _LEAST_BLOCK_BYTES <= len(payload) <= MAX_PAYLOAD_BYTES


def _file(index: int, block: content_pb.ContentBlock, payload: bytes, tool_name: str, about: str) -> File:
    is_text = block.HasField("text")
    return File(
        blob_id=new_id(IdKind.BLOB),
        block_index=index,
        tool_name=shown_tool_name(tool_name),
        about=about,
        mime_type=TEXT_TYPE if is_text else shown_mime_type(block.image.mime_type),
        size_bytes=len(payload),
        line_count=line_count_of(block.text.text) if is_text else 0,
        sha256=hashlib.sha256(payload).hexdigest(),
    )
