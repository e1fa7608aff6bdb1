"""Recognize the dialect of a session file by its first line."""

from collections.abc import Callable
from enum import StrEnum

from spawnmesh_core.json_text import Object

from spawnmesh_transcript.domain.dialects import claude_code, codex, pi
from spawnmesh_transcript.domain.dialects.reading import FileMemory, Reading


class Dialect(StrEnum):
    """Spelled as in the table and in the contract."""

    SPAWNMESH = "SPAWNMESH"
    PI_V1 = "PI_V1"
    PI = "PI"
    OPENCLAW = "OPENCLAW"
    CLAUDE_CODE = "CLAUDE_CODE"
    CODEX = "CODEX"

    @property
    def has_header(self) -> bool:
        """Return whether its files begin with a header, and their lines are of types that the
        contract knows.
        """
        return self not in READERS

    @property
    def has_summaries(self) -> bool:
        """Return whether models read the compactions of its files.

        An export of this service writes compactions that no model has read as well.
        """
        return self is not Dialect.SPAWNMESH


Read = Callable[[str, Object, int, FileMemory], tuple[Reading, FileMemory]]

READERS: dict[Dialect, Read] = {Dialect.CLAUDE_CODE: claude_code.read, Dialect.CODEX: codex.read}

NAMES = "spawnmesh, pi (version 1 and later), OpenClaw, Claude Code and Codex"


def recognize(line: str, root: Object) -> Dialect | None:
    """Return the dialect of a file that begins with this line, None if no dialect does.

    OpenClaw writes the header of pi: a later line tells them apart.
    """
    if pi.begins(root):
        if pi.is_own_export(root):
            return Dialect.SPAWNMESH
        return Dialect.PI_V1 if pi.is_first_version(line, root) else Dialect.PI
    if codex.begins(root):
        return Dialect.CODEX
    return Dialect.CLAUDE_CODE if claude_code.begins(root) else None
