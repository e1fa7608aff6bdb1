"""Texts of MCP servers, cut to a size."""


def truncate(text: str, max_bytes: int) -> tuple[str, int]:
    """Return as much of the text as fits `max_bytes`, and the size of the full text in bytes.

    The text is cut between characters.
    """
    data = text.encode()
    return (text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")), len(data)
