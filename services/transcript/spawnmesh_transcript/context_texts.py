"""What is sent to a model beside a context, counted: the same prompts and schemas again and again."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from spawnmesh_transcript.domain.families import Measure, Vocabulary
from spawnmesh_transcript.tokens import count_tokens

REMEMBERED = 1024
"""Counts that are remembered, of the texts that were last asked for. Of a text only its hash is."""

_INLINE_BYTES = 32 * 1024
"""Up to here counting stays on the event loop; a thread costs more than that."""

_counts: OrderedDict[tuple[bytes, Vocabulary], int] = OrderedDict()
_counts_lock = Lock()


async def accompanying_token_count(texts: Sequence[str], measure: Measure) -> int:
    """Tokens of the texts, counted in a thread where that may take long: not to be called inside a transaction."""
    given = [text.encode() for text in texts]
    is_short = sum(map(len, given)) <= _INLINE_BYTES
    count = (
        _count(given, measure.vocabulary) if is_short else await asyncio.to_thread(_count, given, measure.vocabulary)
    )
    return measure.of(count, measure.vocabulary)


def _count(texts: Sequence[bytes], vocabulary: Vocabulary) -> int:
    return sum(_remembered(text, vocabulary) for text in texts)


def _remembered(text: bytes, vocabulary: Vocabulary) -> int:
    key = (hashlib.sha256(text).digest(), vocabulary)
    with _counts_lock:
        count = _counts.get(key)
    if count is None:
        count = count_tokens(text.decode(), vocabulary)
    with _counts_lock:
        _counts[key] = count
        _counts.move_to_end(key)
        if len(_counts) > REMEMBERED:
            _counts.popitem(last=False)
    return count
