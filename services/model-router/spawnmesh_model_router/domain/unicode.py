"""Repair text that contains surrogates.

JSON can spell half a character, which no encoding accepts.
"""


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace each single surrogate by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def split_trailing_surrogate(text: str) -> tuple[str, str]:
    """Return the text without a high surrogate at its end, and that surrogate.

    The matching low surrogate may follow in the next piece.
    """
    return (text[:-1], text[-1]) if text and "\ud800" <= text[-1] <= "\udbff" else (text, "")
