"""The frames of a call in HTTP/2, for callers that no client library would be."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEADERS, _DATA, _SETTINGS = 1, 0, 4
_END_HEADERS = 4
_SETTING_IDS = {"initial_window_size": 4}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values: int) -> bytes:
    """Return the frame with which a client begins, with settings by their names in lower case."""
    sent = [struct.pack(">HI", _SETTING_IDS[name], value) for name, value in values.items()]
    return frame(_SETTINGS, 0, 0, b"".join(sent))


def headers(stream: int, path: str, *more: tuple[str, str]) -> bytes:
    """Return the headers of a call, each as a literal (RFC 7541, section 6.2.2). None ends the call."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "mesh"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
    return frame(_HEADERS, _END_HEADERS, stream, block)


def message_head(size: int) -> bytes:
    """Return the bytes before a message of gRPC, which has so many bytes."""
    return b"\x00" + struct.pack(">I", size)


def data(stream: int, payload: bytes) -> bytes:
    """Return a part of the request. It does not end the call."""
    return frame(_DATA, 0, stream, payload)


def status_of(received: bytes) -> int | None:
    """Return the status of the only call that has ended; None if none has. gRPC sends it as text."""
    _, found, rest = received.partition(b"\x0bgrpc-status")
    return int(rest[1 : 1 + rest[0]]) if found else None


def _text(value: str) -> bytes:
    """Return a string with its length in 7 bits and more (RFC 7541, sections 5.1 and 5.2)."""
    raw = value.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    length, left = b"\x7f", len(raw) - 127
    while left >= 128:
        length += bytes((left % 128 + 128,))
        left //= 128
    return length + bytes((left,)) + raw
