"""Token counts are those of the complete text, also if it is counted in pieces."""

import pytest
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.tokens import MAX_PIECE_CHARS, count_tokens, encoding


@pytest.mark.parametrize(("text", "count"), [("", 0), ("hello world", 2), ("tokenizer", 2)])
def test_known_counts(text: str, count: int) -> None:
    assert count_tokens(text) == count


def test_special_tokens_are_ordinary_text() -> None:
    assert count_tokens("<|endoftext|>") > 1


@pytest.mark.parametrize(
    "text", ["The quick brown fox jumps.\n", "naïve café déjà vu, 12345 ", "let x_1 = f(y);  // done\n"]
)
def test_a_long_text_counts_the_same_in_pieces(text: str) -> None:
    long = text * (3 * MAX_PIECE_CHARS // len(text))
    assert count_tokens(long) == len(encoding(Vocabulary.O200K).encode_ordinary(long))


@pytest.mark.parametrize("unit", ["x", "漢字", "🜁", "\u0e01"])
def test_a_text_without_word_ends_over_the_tokenizers_limit_is_counted(unit: str) -> None:
    long = unit * (1_200_000 // len(unit))
    assert count_tokens(long) > 0
    piece = unit * (60_000 // len(unit))
    assert count_tokens(piece) == pytest.approx(len(encoding(Vocabulary.O200K).encode_ordinary(piece)), abs=3)
