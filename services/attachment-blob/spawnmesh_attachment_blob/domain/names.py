"""Portable file names: each name denotes one and the same file on every operating system."""

import unicodedata
from enum import StrEnum

MAX_NAME_BYTES = 255
MANIFEST_NAME = ".manifest.json"

_RESERVED_CHARACTERS = frozenset('/\\<>:"|?*')
_DEVICES = frozenset({"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}).union(
    f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789"
)
_REPLACEMENT_CHARACTER = "\ufffd"
_EMOJI_SELECTORS = frozenset("\ufe0e\ufe0f")
# Control, format (bidi and zero-width are here), surrogate, line and paragraph separator.
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Unicode's default-ignorable code points that have another category or are not assigned yet. They
# are invisible, so two names that differ by them look the same.
_IGNORABLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0}.union(
        range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xFFF0, 0xFFF9), range(0xE0000, 0xE1000)
    )
)


class NameProblem(StrEnum):
    """The rule that a name breaks. A refusal reveals nothing else about the name."""

    EMPTY = "empty"
    TOO_LONG = "too_long"
    RESERVED_CHARACTER = "reserved_character"
    UNSEEN_CHARACTER = "unseen_character"
    EDGE_SPACE = "edge_space"
    DOTS = "dots"
    DEVICE = "device"
    MANIFEST = "manifest"


def name_problem(name: str) -> NameProblem | None:
    """Return the first rule that `name` breaks, or None for a portable name."""
    if not name:
        return NameProblem.EMPTY
    if len(name) > MAX_NAME_BYTES:  # Each character takes at least one byte.
        return NameProblem.TOO_LONG
    for previous, character in zip("\0" + name, name, strict=False):
        if character in _RESERVED_CHARACTERS:
            return NameProblem.RESERVED_CHARACTER
        if _is_unseen(character) and not _completes_emoji(previous, character):
            return NameProblem.UNSEEN_CHARACTER
    if len(name.encode("utf-8")) > MAX_NAME_BYTES:
        return NameProblem.TOO_LONG
    if name != name.strip():
        return NameProblem.EDGE_SPACE
    alias = _alias(name)
    if name.endswith(".") or alias in (".", ".."):  # Some systems narrow wide dots.
        return NameProblem.DOTS
    if alias.partition(".")[0].rstrip() in _DEVICES:
        return NameProblem.DEVICE
    if alias == MANIFEST_NAME:
        return NameProblem.MANIFEST
    return None


def duplicate_key(name: str) -> str:
    """Return a key that is equal for names which differ only in case or Unicode composition."""
    # Case folding can decompose a composed text ("ΐ"), so compose it again.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _is_unseen(character: str) -> bool:
    code = ord(character)
    is_noncharacter = 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
    return (
        unicodedata.category(character) in _UNSEEN_CATEGORIES
        or code in _IGNORABLE
        or is_noncharacter
        or character == _REPLACEMENT_CHARACTER
    )


def _completes_emoji(previous: str, character: str) -> bool:
    """Return whether the character is a selector behind a symbol, as in an ordinary emoji."""
    return character in _EMOJI_SELECTORS and unicodedata.category(previous) in {"So", "Sm"}


def _alias(name: str) -> str:
    """Return one form for all spellings that some system maps to the same name.

    These differ in width, ligatures, superscripts or case. Upper case maps the dotless i to its
    ASCII letter; folding leaves a combining dot above for the dotted one.
    """
    return unicodedata.normalize("NFKC", name).upper().casefold().replace("i\u0307", "i")
