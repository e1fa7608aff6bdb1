"""Halves of characters are joined within their own channel, however the channels are mixed."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.clients.providers.stream_sanitizer import StreamSanitizer
from spawnmesh_model_router.domain.answer import CallPiece, Piece, TextPiece, Thought, ThoughtPiece, ToolCall
from spawnmesh_model_router.domain.unicode import repair_surrogates

_TEXTS = st.text(alphabet="aé😀\ud83d\ude00", max_size=3)
_MIXED = st.lists(st.tuples(st.sampled_from(["text", "thought", "call"]), _TEXTS))


def sanitized(*pieces: Piece) -> list[Piece]:
    sanitizer = StreamSanitizer()
    return [sent for piece in pieces for sent in sanitizer.sanitize(piece)]


@given(_MIXED)
def test_each_channel_has_its_own_halves(mixed: list[tuple[str, str]]) -> None:
    texts = {
        kind: "".join(text for other, text in mixed if other == kind) for kind in ("text", "thought", "call")
    }
    pieces: list[Piece] = [CallPiece("c", "read", "", True)]
    for kind, text in mixed:
        made: dict[str, Piece] = {
            "text": TextPiece(text),
            "thought": ThoughtPiece(text),
            "call": CallPiece("c", "read", text),
        }
        pieces.append(made[kind])
    sent = sanitized(*pieces, Thought(texts["thought"], ""), ToolCall("c", "read", texts["call"]))
    [thought] = [piece for piece in sent if isinstance(piece, Thought)]
    [call] = [piece for piece in sent if isinstance(piece, ToolCall)]
    shown = "".join(piece.text for piece in sent if isinstance(piece, ThoughtPiece))
    assert shown == thought.text == repair_surrogates(texts["thought"])
    assert "".join(piece.text for piece in sent if isinstance(piece, TextPiece)) == repair_surrogates(
        texts["text"]
    )
    arguments = "".join(piece.arguments for piece in sent if isinstance(piece, CallPiece))
    # Half a character at the end of a call is not sent: such arguments are no JSON.
    assert call.block_json in (arguments, f"{arguments}\ufffd")
    assert all(piece.arguments for piece in sent if isinstance(piece, CallPiece) and not piece.begins_call)


def test_half_a_character_of_a_call_is_not_in_the_next_one() -> None:
    begun = [CallPiece("c1", "read", '"\ud83d', True), CallPiece("c2", "read", "\ude00", True)]
    assert sanitized(*begun) == [CallPiece("c1", "read", '"', True), CallPiece("c2", "read", "\ufffd", True)]
