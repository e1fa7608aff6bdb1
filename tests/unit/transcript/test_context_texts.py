"""Texts that accompany a context are counted like any text, and their counts are cached without
the texts."""

import pytest
from spawnmesh_transcript.domain.token_vocabularies import Measure, Vocabulary
from spawnmesh_transcript.operations import accompanying_texts as context_texts
from spawnmesh_transcript.operations.accompanying_texts import REMEMBERED, accompanying_token_count
from spawnmesh_transcript.operations.bodies.tokens import count_tokens

LONG = "Say what the weather is like in Reykjavík. " * 2_000


@pytest.mark.parametrize("measure", [Measure(), Measure(Vocabulary.CL100K), Measure(Vocabulary.O200K, 150)])
@pytest.mark.parametrize("texts", [[], [""], ["a b", "c d", "a b"], [LONG, "Größe 你好"]], ids=len)
async def test_a_cached_count_equals_the_count_of_the_texts(texts: list[str], measure: Measure) -> None:
    count = measure.of(sum(count_tokens(text, measure.vocabulary) for text in texts), measure.vocabulary)
    assert [await accompanying_token_count(texts, measure) for _ in range(2)] == [count] * 2


async def test_the_cache_has_short_keys_and_a_limit() -> None:
    await accompanying_token_count([LONG], Measure())
    await accompanying_token_count([f"text {number}" for number in range(2 * REMEMBERED)], Measure())
    assert len(context_texts._counts) == REMEMBERED
    assert {len(digest) for digest, _ in context_texts._counts} == {32}
    await accompanying_token_count(["text 1", f"text {REMEMBERED}", "other"], Measure())
    newest = list(context_texts._counts)[-3:]
    await accompanying_token_count(["text 1"], Measure())
    assert list(context_texts._counts)[-3:] == [*newest[1:], newest[0]]
