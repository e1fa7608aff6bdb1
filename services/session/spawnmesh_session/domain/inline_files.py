"""Inline files of a spawn: the same bytes are the same payload, in whatever form they are sent."""

import base64
import binascii

_WHITE_SPACE = b" \t\n\r\x0b\x0c"


def bytes_of_base64(text: str) -> bytes | None:
    """Return the bytes that a text encodes in strict base64; None for any other text.

    White space is ignored. An empty text is none: attachment-blob refuses it.
    """
    try:
        digits = text.encode("ascii").translate(None, _WHITE_SPACE)
        data = base64.b64decode(digits, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return data if digits and base64.b64encode(data) == digits else None
