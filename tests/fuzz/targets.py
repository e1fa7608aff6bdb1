"""The invariants for any input.

Each target raises AssertionError if an invariant does not hold, and another error for a crash.
"""

import base64
import binascii
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import PureWindowsPath

from spawnmesh_attachment_blob.domain.base64_strict import Base64Refused, decode_strict
from spawnmesh_attachment_blob.domain.names import duplicate_key, name_problem

MAX_BYTES = 64
_ASCII_WHITESPACE = " \t\n\r\v\f"

Target = Callable[[str], bool]
"""A function that checks one input and returns whether the input was accepted."""


def judge_name(name: str) -> bool:
    """Check that an accepted name is one plain component on every system, that a round trip does
    not change it, and that no other spelling of it names another file.
    """
    if name_problem(name) is not None:
        return False
    encoded = name.encode("utf-8")
    assert 1 <= len(encoded) <= 255
    assert encoded.decode("utf-8") == name
    assert not set('/\\<>:"|?*\0') & set(name)
    assert name == name.strip()
    assert not name.endswith(".")
    windows = PureWindowsPath(name)
    assert windows.parts == (name,), "Windows takes it apart"
    assert not windows.is_reserved(), "a device of Windows"
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    assert not any(
        unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in name
    )
    folded = unicodedata.normalize("NFKC", name).casefold()
    assert folded not in (".", "..", ".manifest.json")
    key = duplicate_key(name)
    for other in (
        name.upper(),
        name.lower(),
        unicodedata.normalize("NFD", name),
        unicodedata.normalize("NFC", name),
    ):
        assert duplicate_key(unicodedata.normalize("NFC", other)) == duplicate_key(other)
    assert duplicate_key(unicodedata.normalize("NFD", name)) == key
    assert duplicate_key(key) == key
    return True


def judge_base64(text: str) -> bool:
    """Check that text is accepted if and only if the standard library decodes it strictly and
    encodes it to the same text.
    """
    expected = _read_strictly(text)
    data = None
    with suppress(Base64Refused):
        data = decode_strict(text, max_bytes=MAX_BYTES)
    assert data == expected
    return data is not None


def _read_strictly(text: str) -> bytes | None:
    if len(text) > 2 * ((MAX_BYTES + 2) // 3 * 4):
        return None
    spelled = "".join(character for character in text if character not in _ASCII_WHITESPACE)
    try:
        data = base64.b64decode(spelled.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    if not spelled or len(data) > MAX_BYTES or base64.b64encode(data).decode() != spelled:
        return None
    return data


TARGETS: dict[str, Target] = {"names": judge_name, "base64": judge_base64}
