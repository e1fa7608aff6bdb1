"""What a caller hands over inline, and what is left of it once it has passed."""

from dataclasses import dataclass
from enum import Enum
from typing import Self


class Encoding(Enum):
    """How `InlineItem.content` spells the file's bytes."""

    UTF8 = "utf8"
    BASE64 = "base64"
    UNRECOGNIZED = "unrecognized"
    """Anything else. An item may carry it so that its name is judged first; validation refuses it."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The encoding spelled exactly `utf8` or `base64`; UNRECOGNIZED for every other text."""
        return cls(text) if text in ("utf8", "base64") else cls("unrecognized")


@dataclass(frozen=True, slots=True)
class InlineItem:
    """One attachment as it came; nothing about it is trusted."""

    name: str
    content: str
    encoding: Encoding
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class ValidFile:
    """One attachment that passed. `sha256` is lower-case hex of `data`; `mime_type` is carried over unchecked."""

    name: str
    data: bytes
    sha256: str
    mime_type: str
