"""Text as PostgreSQL can store it."""


def without_nul(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store, with U+FFFD."""
    return text.replace("\x00", "\ufffd")
