"""Large tool results: when a result is large, and what its reference says.

- A payload is one text or image of a large result, or a large image of another entry. It is stored
  outside of its entry; a copy in the entry's body is called inline.
- A blob is the payload's bytes in the blob store, under an id with the prefix `blb_`.
- A file is the payload as a model and DescribeFile name it, by an id with the prefix `file_`. Each
  payload has one blob and one file, and both ids have the same rest.
- A reference is the text that a context shows in place of a payload; it names the file.
- A stub is the body of the entry with references in place of its payloads, and its tokens.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_transcript.domain.stub_text import about_call, call_input
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary

MAX_PAYLOAD_BYTES = 15 * 1024 * 1024
"""The largest payload that fits in one message to the blob store; a larger text stays inline."""

FILE_PREFIX, BLOB_PREFIX = "file_", "blb_"


@dataclass(frozen=True, slots=True)
class File:
    """A text or image of a result, stored in the blob store under the id that its file id is made
    of.
    """

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
    """The replacement for the result at `place` of its batch in contexts: a body with references,
    its tokens, and the files that these name.

    Without a body the entry is always shown complete; its files are only stored in the blob store
    as well.
    """

    place: int
    body: bytes | None
    token_count: int
    files: tuple[File, ...]
    token_vocabulary: Vocabulary
    """The vocabulary of `token_count`."""
    file_id: str = ""
    """Of a condensed message: the beginning of the ids of its files, which are in the entry itself.

    It is used only if the transcript does not fit: see domain/condensation.py.
    """
    thinking_token_count: int = 0
    """The tokens of thinking in the body, which may be left out as well."""

    @property
    def is_condensed(self) -> bool:
        return bool(self.file_id)


def file_id_of(blob_id: str) -> str:
    """Return the file id of a blob."""
    return FILE_PREFIX + blob_id.removeprefix(BLOB_PREFIX)


def blob_id_of(file_id: str) -> str:
    """Return the blob id of a file."""
    return BLOB_PREFIX + file_id.removeprefix(FILE_PREFIX)


def is_large(block_sizes: Sequence[int], *, large_payload_bytes: int) -> bool:
    """Return whether a result with blocks of these sizes is large: their sum decides."""
    return sum(block_sizes) >= large_payload_bytes


def about_block_json(block_json: str) -> str:
    """Return the line about the call that is stored as this JSON, empty if nothing may be shown."""
    try:
        block = json.loads(block_json, strict=False)
        given = call_input(block) if isinstance(block, dict) else None
        if isinstance(given, str):
            given = json.loads(given, strict=False)
    except (ValueError, RecursionError):
        return ""
    return about_call(given)


def line_count_of(text: str) -> int:
    """Return the number of lines; the last one may lack its line feed."""
    return text.count("\n") + (not text.endswith("\n") if text else 0)
