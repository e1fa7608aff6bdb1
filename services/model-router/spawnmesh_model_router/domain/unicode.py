"""Text that can be sent. JSON can spell one half of a character alone, which no encoding takes."""


def mended(text: str) -> str:
    """The text, where halves that stand together are one character, and others are U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def cut_half(text: str) -> tuple[str, str]:
    """The text without the first half of a character at its end, and that half, whose other one may follow."""
    return (text[:-1], text[-1]) if text and "\ud800" <= text[-1] <= "\udbff" else (text, "")
