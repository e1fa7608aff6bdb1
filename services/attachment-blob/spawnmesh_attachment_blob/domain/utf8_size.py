"""The size of a text in UTF-8, known before the encoded text exists."""

_SLICE_CHARS = 16 * 1024


def utf8_size(text: str, *, at_most: int) -> int | None:
    """UTF-8 bytes of `text`, or None as soon as they are known to exceed `at_most`.

    Raises UnicodeEncodeError for a lone surrogate. Needs one small slice at a time, never a copy of `text`.
    """
    if len(text) > at_most:  # every character takes at least one byte
        return None
    if text.isascii():
        return len(text)
    size = 0
    for start in range(0, len(text), _SLICE_CHARS):
        size += len(text[start : start + _SLICE_CHARS].encode("utf-8"))
        if size > at_most:
            return None
    return size
