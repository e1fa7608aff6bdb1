"""A tenant's policy for its transcripts."""

from dataclasses import dataclass

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary

LARGE_PAYLOAD_BYTES = 8_000
"""The default size from which on a tool result is large."""


@dataclass(frozen=True, slots=True)
class TranscriptPolicy:
    """This service's copy of a tenant's settings.

    Version 0 means that the tenant was never prepared.
    """

    settings_version: int = 0
    mask_secrets: bool = False
    stub_large_tool_payloads: bool = False
    large_payload_bytes: int = LARGE_PAYLOAD_BYTES
    compact_at_percent: int = 0
    token_vocabulary: Vocabulary = Vocabulary.O200K
