"""The files that a browser may show instead of storing them."""

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
MAX_PREVIEW_BYTES = 16 * 1024 * 1024


def image_type(first_bytes: bytes) -> str | None:
    """Return the type of the picture that begins with these bytes; None for anything else.

    A file's own word for its type counts for nothing: a page can say that it is a picture. Vector
    graphics are none of these, because they can have scripts.
    """
    for signature, mime_type in _SIGNATURES.items():
        if first_bytes.startswith(signature):
            return mime_type
    return "image/webp" if first_bytes[:4] == b"RIFF" and first_bytes[8:12] == b"WEBP" else None
