"""Cut a tool result to its share of a context, with a note about the rest.

CPU work only.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.stub_text import DESCRIBE_TOOL
from spawnmesh_transcript.operations.bodies.stubs import payload_of
from spawnmesh_transcript.operations.bodies.tokens import (
    block_token_count,
    count_tokens,
    message_token_count,
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
    longest_note = _note(size, size, next(iter(file_ids.values()), ""), size)
    left_tokens = token_count - count_tokens(longest_note, vocabulary)
    left_tokens -= sum(block_token_count(block, vocabulary) for block in calls)
    kept: list[content_pb.ContentBlock] = []
    left_bytes, shown, cut_index, cut_offset = size_bytes, 0, len(blocks), 0
    for index, block in enumerate(blocks):
        payload = payload_of(block)
        if payload is None:
            kept.append(block)
            continue
        if len(payload) <= left_bytes and (cost := _cost_within(block, left_tokens, vocabulary)) is not None:
            left_tokens -= cost
            left_bytes -= len(payload)
            shown += len(payload)
            kept.append(block)
            continue
        cut_index = index
        if block.HasField("text"):
            text = _beginning(block.text.text, left_tokens, left_bytes, vocabulary)
            cut_offset = len(text.encode())
            shown += cut_offset
            if text:
                kept.append(_text(text))
        break
    kept += [block for block in calls if block not in kept]
    if cut_index < len(blocks):
        kept.append(_text(_note(shown, size, file_ids.get(cut_index, ""), cut_offset)))
    _replace_content(entry.message, kept)
    return CutResult(entry.SerializeToString(), message_token_count(entry.message, vocabulary), shown, size)


def _cost_within(block: content_pb.ContentBlock, token_count: int, vocabulary: Vocabulary) -> int | None:
    """Return the tokens of a block, None if they are more than so many.

    Of a long text only the beginning is counted then.
    """
    if block.HasField("text") and len(token_prefix(block.text.text, token_count, vocabulary)) < len(
        block.text.text
    ):
        return None
    cost = block_token_count(block, vocabulary)
    return cost if cost <= token_count else None


def _beginning(text: str, token_count: int, size_bytes: int, vocabulary: Vocabulary) -> str:
    """Return the beginning of a text within both limits, cut behind a line if one ends near."""
    short = text[: max(size_bytes, 0)]
    within = token_prefix(
        short.encode()[: max(size_bytes, 0)].decode(errors="ignore"), token_count, vocabulary
    )
    line_end = within.rfind("\n") + 1
    return within[:line_end] if line_end >= len(within) * _NEAR_THE_END else within


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
