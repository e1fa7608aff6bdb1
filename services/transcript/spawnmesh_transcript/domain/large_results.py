"""Which results of tools are large, and what their references say."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.stub_text import about_call, call_input

MAX_PAYLOAD_BYTES = 15 * 1024 * 1024
"""What one message to the blob store holds; a larger text stays where it is."""

FILE_PREFIX, BLOB_PREFIX = "file_", "blb_"


@dataclass(frozen=True, slots=True)
class File:
    """One text or image of a result, kept in the blob store under the id that its file id is made of."""

    blob_id: str
    block_index: int
    tool_name: str
    about: str
    mime_type: str
    size_bytes: int
    line_count: int
    sha256: str

    @property
    def file_id(self) -> str:
        return file_id_of(self.blob_id)


@dataclass(frozen=True, slots=True)
class Stub:
    """What stands for the result at `place` among the entries that it came with: a whole body, with its tokens, and the files that it names.

    Without a body nothing stands for the entry: its files are in the blob store too, and everybody reads it whole.
    """

    place: int
    body: bytes | None
    token_count: int
    files: tuple[File, ...]
    token_vocabulary: Vocabulary
    """Of the count."""


def file_id_of(blob_id: str) -> str:
    """The id that a reference names."""
    return FILE_PREFIX + blob_id.removeprefix(BLOB_PREFIX)


def blob_id_of(file_id: str) -> str:
    """The id in the blob store."""
    return BLOB_PREFIX + file_id.removeprefix(FILE_PREFIX)


def is_large(block_sizes: Sequence[int], *, large_payload_bytes: int) -> bool:
    """Whether a result of such blocks is: by all of them together."""
    return sum(block_sizes) >= large_payload_bytes


def about_block_json(block_json: str) -> str:
    """The line for a result of the call that is stored as this JSON; empty where nothing may be shown."""
    try:
        block = json.loads(block_json, strict=False)
        given = call_input(block) if isinstance(block, dict) else None
        if isinstance(given, str):
            given = json.loads(given, strict=False)
    except (ValueError, RecursionError):
        return ""
    return about_call(given)


def line_count_of(text: str) -> int:
    """Lines, of which the last one may lack its line feed."""
    return text.count("\n") + (not text.endswith("\n") if text else 0)
