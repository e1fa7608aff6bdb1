"""Compute the size of a text in UTF-8 without encoding the complete text."""

_SLICE_CHARS = 16 * 1024


def utf8_size(text: str, *, at_most: int) -> int | None:
    """Return the UTF-8 size of `text` in bytes, or None if it exceeds `at_most`.

    Encodes one small slice at a time and never copies `text`. Raises UnicodeEncodeError for a lone
    surrogate.
    """
    if len(text) > at_most:  # Each character takes at least one byte.
        return None
    if text.isascii():
        return len(text)
    size = 0
    for start in range(0, len(text), _SLICE_CHARS):
        size += len(text[start : start + _SLICE_CHARS].encode("utf-8"))
        if size > at_most:
            return None
    return size
