"""Count the texts that are sent to a model beside a context: mostly the same prompts and schemas
each time.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from spawnmesh_transcript.domain.token_vocabularies import Measure, Vocabulary
from spawnmesh_transcript.operations.bodies.tokens import count_tokens

REMEMBERED = 1024
"""The number of cached counts, of the texts that were counted last.

Only the hash of a text is kept.
"""

_INLINE_BYTES = 32 * 1024
"""Fewer bytes are counted on the event loop: starting a thread takes longer."""

_counts: OrderedDict[tuple[bytes, Vocabulary], int] = OrderedDict()
_counts_lock = Lock()


async def accompanying_token_count(texts: Sequence[str], measure: Measure) -> int:
    """Return the tokens of the texts, counted in a thread if that may take long.

    Not to be called inside a transaction.
    """
    given = [text.encode() for text in texts]
    is_short = sum(map(len, given)) <= _INLINE_BYTES
    count = (
        _count(given, measure.vocabulary)
        if is_short
        else await asyncio.to_thread(_count, given, measure.vocabulary)
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
