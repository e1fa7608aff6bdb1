"""The entries that a summary covers, its pieces, and its length."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_transcript.domain.compaction import (
    MAX_PIECES,
    MAX_SUMMARY_TOKENS,
    MIN_SOURCE_TOKENS,
    PIECE_TOKENS,
    Source,
    cut_middle,
    cut_to_tokens,
    excerpt,
    files_in,
    files_line,
    fitting_end,
    is_due,
    is_worth_it,
    minimal_end,
    pieces,
    summary_limit,
    unsplit_end,
    with_files,
)
from spawnmesh_transcript.domain.pairing import pair
from spawnmesh_transcript.domain.stale_results import TailLimits, newest_stale, position_turns
from spawnmesh_transcript.domain.turns import Role, Turn
from spawnmesh_transcript.operations.bodies.tokens import count_tokens

_IDS = st.sampled_from(["a", "b", "c"])


@st.composite
def transcripts(draw: st.DrawFn) -> list[Turn]:
    """Generate turns in order: results anywhere behind their calls or nowhere, and reused ids."""
    turns: list[Turn] = []
    for seq in range(1, draw(st.integers(1, 30)) + 1):
        role = draw(st.sampled_from([Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.NOTE]))
        calls = tuple(draw(st.sets(_IDS))) if role is Role.ASSISTANT else ()
        answers = draw(_IDS) if role is Role.TOOL_RESULT else ""
        turns.append(Turn(seq, role, draw(st.integers(0, 50) | st.integers(100, 300)), calls, answers))
    return turns


def _straddles(turns: list[Turn], end_seq: int) -> bool:
    for group in pair(turns).groups:
        seqs = [member.seq for member in group.members if isinstance(member, Turn)]
        if min(seqs) <= end_seq < max(seqs):
            return True
    return False


@settings(max_examples=50)
@given(transcripts(), st.integers(0, 40))
def test_no_result_is_separated_from_its_call_and_no_fewer_entries_are_taken_than_possible(
    turns: list[Turn], end_seq: int
) -> None:
    end = unsplit_end(pair(turns).groups, end_seq)
    assert end <= end_seq
    assert not _straddles(turns, end)
    assert all(_straddles(turns, seq) for seq in range(end + 1, end_seq + 1))


@settings(max_examples=50)
@given(transcripts())
def test_the_smallest_selection_is_complete_and_worth_a_summary(turns: list[Turn]) -> None:
    end = minimal_end(pair(turns).groups, turns)
    assert not _straddles(turns, end)
    worth = [seq for seq in range(1, len(turns) + 1) if is_worth_it(turns[:seq])]
    if worth:
        assert end >= worth[0]
        assert all(_straddles(turns, seq) for seq in range(worth[0], end))
        assert sum(turn.token_count for turn in turns[:end]) >= MIN_SOURCE_TOKENS
    else:
        assert end == len(turns)


@settings(max_examples=50)
@given(transcripts(), st.integers(1, 10), st.integers(1, 400))
def test_only_entries_that_the_tier_regards_as_stale_are_summarized(
    turns: list[Turn], messages: int, tokens: int
) -> None:
    limits = TailLimits(messages, tokens)
    totals = {"turn_count": len(turns), "token_count": sum(turn.token_count for turn in turns)}
    stale_seq = newest_stale(reversed(turns), **totals, limits=limits)
    assert position_turns(reversed(turns), **totals, limits=limits).stale_seq == stale_seq
    fresh = [turn for turn in turns if turn.seq > stale_seq]
    if stale_seq:
        assert any(turn.role is Role.ASSISTANT for turn in fresh), "what is not answered is fresh"
        assert len(fresh) >= messages or sum(turn.token_count for turn in fresh) >= tokens


def _source(seq: int, token_count: int, text: str = "x", speaker: str = "user") -> Source:
    return Source(seq, speaker, text, "", token_count)


@given(st.lists(st.integers(1, PIECE_TOKENS * 2), max_size=60))
def test_pieces_cover_everything_in_order_within_the_size_of_a_prompt(sizes: list[int]) -> None:
    sources = [_source(seq, size) for seq, size in enumerate(sizes, start=1)]
    cut = pieces(sources)
    assert [source for piece in cut for source in piece] == sources
    assert all(len(piece) == 1 or sum(one.token_count for one in piece) <= PIECE_TOKENS for piece in cut)
    for piece, following in pairwise(cut):
        assert sum(one.token_count for one in piece) + following[0].token_count > PIECE_TOKENS
    if sources:
        reached = [source for source in sources if source.seq <= fitting_end(sources)]
        assert len(pieces(reached)) == min(MAX_PIECES, len(cut))


@given(st.integers(0, 10**7))
def test_a_summary_is_never_longer_than_half_its_sources(token_count: int) -> None:
    assert summary_limit(token_count) <= min(MAX_SUMMARY_TOKENS, token_count / 2)


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=300) | st.builds(
    lambda n: "word " * n, st.integers(0, 400)
)


@settings(deadline=None, max_examples=50)  # The first call loads the vocabulary.
@given(_TEXTS, st.lists(_TEXTS, min_size=1, max_size=12), st.integers(64, 600))
def test_an_excerpt_is_deterministic_and_within_its_limit(
    previous: str, texts: list[str], limit: int
) -> None:
    sources = [_source(seq, 1, text) for seq, text in enumerate(texts, start=1)]
    made = excerpt(previous, sources, max_token_count=limit, count=count_tokens)
    assert 0 < count_tokens(made) <= limit
    assert made.startswith(f"Excerpt: only the beginnings of {len(sources)} earlier messages")
    assert made == excerpt(previous, sources, max_token_count=limit, count=count_tokens)


def test_an_excerpt_has_part_of_each_message_that_fits_and_otherwise_of_the_newest() -> None:
    sources = [_source(seq, 1, f"number {seq} " + "word " * 500) for seq in range(1, 101)]
    wide = excerpt("", sources, max_token_count=4_000, count=count_tokens)
    assert all(f"number {seq} " in wide for seq in range(1, 101))
    tight = excerpt("", sources, max_token_count=400, count=count_tokens)
    assert "number 100 " in tight
    assert "number 1 " not in tight
    assert count_tokens(tight) > 300


def test_an_excerpt_begins_with_the_previous_summary_in_at_most_half_of_its_tokens() -> None:
    sources = [_source(1, 1, "the newest message")]
    short = excerpt("what was\nbefore", sources, max_token_count=400, count=count_tokens)
    assert short.split("\n")[1] == "Before them: what was before"
    long = excerpt("word " * 1_000, sources, max_token_count=400, count=count_tokens)
    assert 150 < count_tokens(long.split("\n")[1]) <= 200
    assert "the newest message" in long


def test_files_that_a_summary_does_not_name_are_listed_behind_it() -> None:
    ids = [f"file_{number:026d}" for number in range(40)]
    line = files_line(ids, limit=4_000, count=count_tokens)
    assert count_tokens(line) <= 1_000
    named = files_in(line)
    assert named == ids[::-1][: len(named)], "the newest first"
    assert len(named) >= 20
    text = with_files(f"It is in {ids[-1]}.", line)
    assert files_in(text) == [ids[-1], *named[1:]]
    assert files_line([], limit=4_000, count=count_tokens) == ""
    assert with_files("Nothing.", "") == "Nothing."


def test_text_within_the_tokens_is_not_cut() -> None:
    assert cut_to_tokens("abcdef", 6, len) == "abcdef"
    assert cut_to_tokens("abcdef", 5, len) == "abcde"
    assert cut_to_tokens("abcdef", 0, len) == ""


def test_the_middle_of_a_long_text_is_omitted_and_counted() -> None:
    assert cut_middle("a" * 10, 10) == "a" * 10
    assert (
        cut_middle("a" * 20 + "b" * 1_000 + "c" * 10, 30)
        == "a" * 20 + " [… 1,000 characters left out …] " + "c" * 10
    )


def test_a_compaction_is_due_at_a_share_of_the_budget_or_if_something_does_not_fit() -> None:
    assert not is_due(0, has_dropped=True, token_count=100, token_budget=100)
    assert is_due(80, has_dropped=True, token_count=1, token_budget=100)
    assert [is_due(80, has_dropped=False, token_count=count, token_budget=100) for count in (79, 80)] == [
        False,
        True,
    ]


def test_few_entries_are_not_worth_a_summary() -> None:
    assert [is_worth_it([Turn(1, Role.USER, tokens), Turn(2, Role.USER, 100)]) for tokens in (155, 156)] == [
        False,
        True,
    ]
