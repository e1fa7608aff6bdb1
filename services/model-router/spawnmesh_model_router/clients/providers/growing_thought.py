"""Thoughts that are shown while the model writes them."""

from spawnmesh_model_router.domain.answer import Piece, Thought, ThoughtPiece


class GrowingThought:
    """The text that no complete thought has yet. A complete thought has exactly what was shown."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not self._texts

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def grow(self, text: str | None) -> list[Piece]:
        """Add the text, and return the piece that shows it; an empty list if it is empty."""
        if not text:
            return []
        self._texts.append(text)
        return [ThoughtPiece(text)]

    def finish(self, signature: str = "") -> list[Piece]:
        """Return the complete thought, and begin the next one; an empty list if it is empty."""
        text, self._texts = self.text, []
        return [Thought(text, signature)] if text or signature else []
