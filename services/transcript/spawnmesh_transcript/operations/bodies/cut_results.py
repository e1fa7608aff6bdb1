"""Cut a tool result to its share of a context, with a note about the rest.

CPU work only.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.stub_text import DESCRIBE_TOOL
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.stubs import payload_of
from spawnmesh_transcript.operations.bodies.tokens import (
    block_token_count,
    count_tokens,
    token_prefix,
)

_NEAR_THE_END = 0.8  # A line that ends in the last fifth of the shown text is the last one shown.


class CutResult(NamedTuple):
    """The body of a result of which a part is shown, its tokens, and the bytes of texts and images
    that are shown and that there are.
    """

    body: bytes
    token_count: int
    shown_bytes: int
    size_bytes: int


def cut_result(
    body: bytes,
    file_ids: Mapping[int, str],
    *,
    token_count: int,
    size_bytes: int,
    vocabulary: Vocabulary = Vocabulary.O200K,
) -> CutResult:
    """Return the beginning of a result, within so many tokens and about so many bytes.

    The texts and images are kept in order as far as they fit. The first text that does not fit is
    cut, behind a line if one ends near. What follows is left out. A note says how many bytes are
    shown, and how to read the rest: in the file of the cut block (`file_ids` by block index), or
    else by another call of the tool. A call that the result itself holds stays.
    """
    entry = pb.EntryBody.FromString(body)
    blocks = list(entry.message.content)
    size = sum(len(payload_of(block) or b"") for block in blocks)
    calls = [block for block in blocks if block.HasField("tool_call")]
    call_tokens = sum(block_token_count(block, vocabulary) for block in calls)
    longest_note = _note(size, size, next(iter(file_ids.values()), ""), size)
    left_tokens = token_count - call_tokens - count_tokens(longest_note, vocabulary)
    left_bytes = size_bytes
    kept: list[content_pb.ContentBlock] = []
    cut_index, cut_offset, used_tokens = len(blocks), 0, call_tokens
    for index, block in enumerate(blocks):
        if (payload := payload_of(block)) is None:
            kept.append(block)
            continue
        part, tokens = _beginning(block, len(payload), left_tokens, left_bytes, vocabulary)
        part_bytes = len(payload_of(part) or b"") if part else 0
        if part:
            kept.append(part)
        used_tokens += tokens
        left_tokens -= tokens
        left_bytes -= part_bytes
        if part_bytes < len(payload):
            cut_index, cut_offset = index, part_bytes
            break
    kept += [block for block in calls if block not in kept]
    shown = size_bytes - left_bytes
    if cut_index < len(blocks):
        note = _note(shown, size, file_ids.get(cut_index, ""), cut_offset)
        used_tokens += count_tokens(note, vocabulary)
        kept.append(_text(note))
    _replace_content(entry.message, kept)
    return CutResult(entry.SerializeToString(), used_tokens, shown, size)


def _beginning(
    block: content_pb.ContentBlock,
    block_bytes: int,
    token_count: int,
    size_bytes: int,
    vocabulary: Vocabulary,
) -> tuple[content_pb.ContentBlock | None, int]:
    """Return the part of a text or an image within both limits, None for nothing, and its tokens.

    An image has no part. A text is cut behind a line if one ends near.
    """
    if not block.HasField("text"):
        tokens = block_token_count(block, vocabulary)
        return (block, tokens) if tokens <= token_count and block_bytes <= size_bytes else (None, 0)
    text = block.text.text
    if block_bytes > size_bytes:
        text = text[: max(size_bytes, 0)].encode()[: max(size_bytes, 0)].decode(errors="ignore")
    within, tokens = token_prefix(text, token_count, vocabulary)
    if len(within) == len(block.text.text):
        return block, tokens
    line_end = within.rfind("\n") + 1
    if line_end >= len(within) * _NEAR_THE_END:
        within = within[:line_end]
    return (_text(within), tokens) if within else (None, 0)


def _note(shown: int, size: int, file_id: str, offset: int) -> str:
    rest = (
        f"call {DESCRIBE_TOOL} with file_id {file_id} and offset {offset}"
        if file_id
        else "call the tool again for a smaller part"
    )
    return f"[Cut: {shown:,} of {size:,} bytes of this result are shown. To read the rest, {rest}.]"


def _text(text: str) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(text=content_pb.Text(text=text))


def _replace_content(message: content_pb.Message, blocks: Sequence[content_pb.ContentBlock]) -> None:
    copies = [content_pb.ContentBlock.FromString(block.SerializeToString()) for block in blocks]
    del message.content[:]
    message.content.extend(copies)
