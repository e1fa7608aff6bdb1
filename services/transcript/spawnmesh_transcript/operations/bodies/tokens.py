"""Count the tokens that a model reads, by the vocabularies that can be counted here."""

import re
import warnings
from functools import cache
from typing import TYPE_CHECKING

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary

if TYPE_CHECKING:
    from bpe_openai import Encoding

MAX_PIECE_CHARS = 50_000
"""The longest text counted in one call.

A character is at most four tokens, and the tokenizer refuses more than 200,000.
"""

IMAGE_TOKEN_COUNT = 1_600
"""Tokens of an image: about what large providers charge for one scaled to the size that their
models see.

Its bytes say nothing about it.
"""

# No token spans the boundary of a letter and the space before the next word: counts of both sides
# add up.
_SAFE_CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])")
_CUT_SEARCH_CHARS = 2_000


@cache
def encoding(vocabulary: Vocabulary) -> "Encoding":
    """Return the vocabulary.

    The first call loads it, which takes about a second: a server does it at startup.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # The package reads its data by an old function, while it is imported.
        from bpe_openai import get_encoding
    return get_encoding(vocabulary.value)


def count_tokens(text: str, vocabulary: Vocabulary = Vocabulary.O200K) -> int:
    """Return the tokens of a text of any length.

    The count is exact up to MAX_PIECE_CHARS. Beyond, it is too high by at most one for each cut
    that finds no end of a word.
    """
    if not text:
        return 0
    encode = encoding(vocabulary).encode_ordinary
    count = 0
    start = 0
    while len(text) - start > MAX_PIECE_CHARS:
        end = _cut(text, start + MAX_PIECE_CHARS)
        count += len(encode(text[start:end]))
        start = end
    return count + len(encode(text[start:]))


def token_prefix(text: str, token_count: int, vocabulary: Vocabulary = Vocabulary.O200K) -> tuple[str, int]:
    """Return the longest beginning of a text that has at most so many tokens, and its tokens.

    Text behind the beginning is hardly counted.
    """
    start = count = 0
    while start < len(text):
        end = len(text) if len(text) - start <= MAX_PIECE_CHARS else _cut(text, start + MAX_PIECE_CHARS)
        cost = count_tokens(text[start:end], vocabulary)
        if count + cost > token_count:
            length = _chars_within(text[start:end], token_count - count, vocabulary)
            beginning = text[start : start + length]
            return text[: start + length], count + count_tokens(beginning, vocabulary)
        count += cost
        start = end
    return text, count


def _chars_within(text: str, token_count: int, vocabulary: Vocabulary) -> int:
    """Return a number of characters at the beginning that has at most so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle], vocabulary) <= token_count:
            low = middle
        else:
            high = middle - 1
    return low


def body_token_count(body: pb.EntryBody, vocabulary: Vocabulary = Vocabulary.O200K) -> int:
    """Return the tokens that a model reads of an entry, 0 for kinds that no model reads."""
    match body.WhichOneof("kind"):
        case "message":
            return message_token_count(body.message, vocabulary)
        case "system_note":
            return count_tokens(body.system_note.text, vocabulary)
        case _:
            return 0


def message_token_count(message: content_pb.Message, vocabulary: Vocabulary = Vocabulary.O200K) -> int:
    """Return the tokens that a model reads of a message."""
    command = (
        count_tokens(message.bash_execution.command, vocabulary) if message.HasField("bash_execution") else 0
    )
    return command + sum(block_token_count(block, vocabulary) for block in message.content)


def block_token_count(block: content_pb.ContentBlock, vocabulary: Vocabulary = Vocabulary.O200K) -> int:
    """Return the tokens that a model reads of a content block."""
    match block.WhichOneof("block"):
        case "text":
            return count_tokens(block.text.text, vocabulary)
        case "thinking":
            return count_tokens(block.thinking.text, vocabulary)
        case "tool_call":
            return count_tokens(block.tool_call.block_json, vocabulary)
        case _:
            return IMAGE_TOKEN_COUNT


def _cut(text: str, limit: int) -> int:
    cuts = [found.start() for found in _SAFE_CUT.finditer(text, limit - _CUT_SEARCH_CHARS, limit + 2)]
    return next((cut for cut in reversed(cuts) if cut <= limit), limit)
