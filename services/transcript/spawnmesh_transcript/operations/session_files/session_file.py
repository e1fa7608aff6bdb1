"""The facts that hold for all lines of a session file, and the ids of its entries."""

from dataclasses import dataclass

from spawnmesh_core.ids import IdKind, derived_id

from spawnmesh_transcript.domain.token_vocabularies import Vocabulary


@dataclass(frozen=True, slots=True)
class SessionFile:
    """The session, incarnation and settings that hold for all lines of a file."""

    session_id: str
    incarnation: str
    mask_secrets: bool
    token_vocabulary: Vocabulary = Vocabulary.O200K

    @property
    def header_entry_id(self) -> str:
        return derived_id(IdKind.ENTRY, f"header:{self.session_id}")

    def entry_id(self, source_id: str) -> str:
        """Return the id of an entry of the file, without having read the entry."""
        return derived_id(IdKind.ENTRY, f"entry:{source_id}:{self.session_id}")

    def line_entry_id(self, number: int, part: int = 0) -> str:
        """Return the id of an entry whose line has no id, or has one for another entry."""
        return derived_id(IdKind.ENTRY, f"line:{number}.{part}:{self.session_id}")
