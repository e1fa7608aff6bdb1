"""Bytes that are nearly a message: what a faulty or hostile client sends."""

import random
from collections.abc import Callable

_VARINT_BYTES = 11
_MOST_CHANGES = 4


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four changes."""
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        data = rng.choice(_CHANGES)(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\xff"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 16))) + data[at:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    """Repeat a part: of a field that occurs twice the last value counts, or both are merged."""
    first = rng.randrange(len(data) + 1)
    last = rng.randint(first, len(data))
    return data[:last] + data[first:last] * rng.choice((1, 2, 50)) + data[last:]


def _wrong_wire_type(data: bytes, rng: random.Random) -> bytes:
    """Give the first field, or a byte that may begin one, another wire type."""
    if not data:
        return b"\x0f"
    at = rng.choice((0, rng.randrange(len(data))))
    return data[:at] + bytes([data[at] & 0xF8 | rng.randrange(8)]) + data[at + 1 :]


def _unknown_field(data: bytes, rng: random.Random) -> bytes:
    """Add a field that the contract does not have, of any wire type."""
    number = rng.choice((0, 15, 1_000, 2**29 - 1, 2**29))
    tag = _varint(number << 3 | rng.randrange(6))
    return data + tag + rng.choice((b"\x01", b"\x00" * 4, b"\x00" * 8, b"\x02ab", b""))


def _long_length(data: bytes, rng: random.Random) -> bytes:
    """Add a field with more bytes than there are."""
    length = rng.choice((len(data) + 1, 2**31 - 1, 2**32, 2**63, 2**64 - 1))
    return data + _varint(rng.randint(1, 20) << 3 | 2) + _varint(length) + b"x"


def _endless_number(data: bytes, rng: random.Random) -> bytes:
    return data + _varint(rng.randint(1, 20) << 3) + b"\xff" * _VARINT_BYTES


def _nested(data: bytes, rng: random.Random) -> bytes:
    """Wrap the bytes into fields and groups, deeper than a message may be nested."""
    depth = rng.choice((2, 50, 101, 2_000))
    if rng.random() < 0.5:
        group = _varint(rng.randint(1, 20) << 3 | 3)
        return group * depth + data
    for _ in range(min(depth, 200)):
        data = _varint(rng.randint(1, 4) << 3 | 2) + _varint(len(data)) + data
    return data


def _not_utf8(data: bytes, rng: random.Random) -> bytes:
    return data + _varint(rng.randint(1, 20) << 3 | 2) + b"\x04\xff\xfe\xed\xa0"


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _cut,
    _insert,
    _repeat,
    _wrong_wire_type,
    _unknown_field,
    _long_length,
    _endless_number,
    _nested,
    _not_utf8,
)
