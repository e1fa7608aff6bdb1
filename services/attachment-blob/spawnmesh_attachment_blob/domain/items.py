"""Inline attachments before and after validation."""

from dataclasses import dataclass
from enum import Enum
from typing import Self


class Encoding(Enum):
    """Encoding of `InlineItem.content`."""

    UTF8 = "utf8"
    BASE64 = "base64"
    NONE = "none"
    """The content is the bytes themselves."""
    UNRECOGNIZED = "unrecognized"
    """Any other value. Validation refuses it, after it has checked the name."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the encoding for exactly `utf8` or `base64`, UNRECOGNIZED for any other text."""
        return cls(text) if text in ("utf8", "base64") else cls("unrecognized")


@dataclass(frozen=True, slots=True)
class InlineItem:
    """An inline attachment as the caller sent it. No field is trusted.

    The content is bytes if its encoding is NONE, and otherwise text.
    """

    name: str
    content: str | bytes
    encoding: Encoding
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class ValidFile:
    """An attachment that passed validation.

    `sha256` is the lower-case hex hash of `data`. `mime_type` is copied without a check.
    """

    name: str
    data: bytes
    sha256: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of another set, and its name in the new set; empty for the same name."""

    set_id: str
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a set. The object with the hash `sha256` holds its bytes."""

    name: str
    size_bytes: int
    sha256: str
    mime_type: str
