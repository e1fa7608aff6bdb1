"""Batches of lines from the bytes of a file."""

import re

BATCH_BYTES = 512 * 1024
_LINES = re.compile(rb"(?:[^\n]*\n){1,5000}")
"""The most lines of a batch: each costs something by itself, also an empty one."""


def first_batch(pending: bytearray, end: int) -> bytes:
    """Return the first lines up to `end`: at least one, however long, and the last one without its
    line feed.
    """
    limit = min(end, BATCH_BYTES)
    found = _LINES.match(pending, 0, limit)
    size = found.end() if found else pending.find(b"\n", limit, end) + 1
    if limit == end and pending.find(b"\n", size, end) < 0:
        size = end
    with memoryview(pending) as view:  # A slice of the bytearray itself would be one copy more.
        return bytes(view[: size or end])
