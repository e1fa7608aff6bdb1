"""Reasons for which a list of attachments is refused."""

from collections.abc import Mapping
from enum import StrEnum


class AttachmentReason(StrEnum):
    """Stable identifiers. Clients match on them."""

    DISABLED = "ATTACHMENTS_DISABLED"
    FILE_COUNT_EXCEEDED = "ATTACHMENTS_FILE_COUNT_EXCEEDED"
    INVALID_NAME = "ATTACHMENTS_INVALID_NAME"
    DUPLICATE_NAME = "ATTACHMENTS_DUPLICATE_NAME"
    INVALID_ENCODING = "ATTACHMENTS_INVALID_ENCODING"
    INVALID_BASE64_OR_TOO_LARGE = "ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE"
    FILE_BYTES_EXCEEDED = "ATTACHMENTS_FILE_BYTES_EXCEEDED"
    TOTAL_BYTES_EXCEEDED = "ATTACHMENTS_TOTAL_BYTES_EXCEEDED"


class AttachmentRefused(Exception):
    """The complete list is refused because of the first problem found.

    `facts` name the item by `index` (from 0) and the limit or rule. They never hold a name or
    content, because both come from outside and end in logs and terminals.
    """

    def __init__(self, reason: AttachmentReason, facts: Mapping[str, str | int]) -> None:
        self.reason = reason
        self.facts: dict[str, str | int] = dict(facts)
        super().__init__(reason, self.facts)

    def __str__(self) -> str:
        return " ".join([self.reason.value, *(f"{key}={value}" for key, value in self.facts.items())])
