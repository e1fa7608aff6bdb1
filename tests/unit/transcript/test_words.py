"""Texts are found by their words, in any script."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_transcript.domain.patterns import compile_pattern
from spawnmesh_transcript.domain.words import (
    PIECE_WORDS,
    Word,
    find_first,
    parse_words,
    parts_of,
    pieces_of,
    words_of,
)


def finds(query: str, text: str) -> str | None:
    """Return the matches of the first term of the query that matches."""
    place = find_first(words_of(text), parse_words(query))
    return None if place is None else text[slice(*place)]


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("fox", "The quick Fox", "Fox"),
        ("STRASSE", "an der Straße", "Straße"),
        ('"quick fox"', "a quick  (fox)", "quick  (fox"),
        ('"fox quick"', "a quick fox", None),
        ("foo-bar", "a foo_bar b", "foo_bar"),
        ("read*", "he was reading", "reading"),
        ("read", "he was reading", None),
        ("cafe\u0301", "un café", "café"),
        ("北京", "我在北京大学学习", "北京"),
        ("大学学习", "我在北京大学学习", "大学学习"),
        ("学", "我在北京大学学习", "学学"),
        ("习", "我在北京大学学习", "习"),
        ("京北", "我在北京大学学习", None),
        ("テスト", "これはテストです", "テスト"),
        ("서울", "서울에서 만나요", "서울"),
        ("v2北京", "版本v2北京站", "v2北京"),
        ("北京v2", "去北京v2站", "北京v2"),
        ("กรุงเทพ", "ไปกรุงเทพมหานคร", "กรุงเทพ"),
        ("हिन्दी", "वह हिन्दी बोलता", "हिन्दी"),
        ("ＡＢＣ", "full width abc", "abc"),
    ],
)
def test_words_and_phrases_are_found_at_their_positions(query: str, text: str, found: str | None) -> None:
    assert finds(query, text) == found


SPELLINGS = [
    (
        "\u30ac\u30b9",
        "\u30ab\u3099\u30b9",
        "\uff76\uff9e\uff7d",
    ),  # Katakana: composed, decomposed, in half width.
    ("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"),  # Hangul: composed, decomposed.
]


@pytest.mark.parametrize(
    ("query", "text"), [(query, text) for group in SPELLINGS for query in group for text in group]
)
def test_kana_and_hangul_are_found_in_any_of_their_spellings(query: str, text: str) -> None:
    assert finds(query, f"({text})") == text


def test_a_term_is_found_without_reading_to_the_end() -> None:
    def endless() -> Iterator[Word]:
        yield from words_of("the quick brown fox and then")
        raise AssertionError("read on")

    assert find_first(endless(), parse_words('"quick brown fox" quick')) == (4, 19)
    assert find_first(words_of("b a b"), parse_words("c a b")) == (2, 3)
    assert find_first(words_of("b a b"), parse_words('"b a b c" "a b c" "b"')) == (0, 1)


def test_queries_are_parsed_term_by_term() -> None:
    terms = parse_words('fox "lazy dog" -cat pre* -- !!! -"a b"')
    assert [(term.tsquery(), term.is_excluded) for term in terms] == [
        ("'fox'", False),
        ("'lazy' <1> 'dog'", False),
        ("'cat'", True),
        ("'pre':*", False),
        ("'a' <1> 'b'", True),
    ]
    assert parse_words("!!! -") == []


@given(st.text(max_size=200), st.text(max_size=50))
def test_no_text_makes_words_that_the_database_would_parse_differently(text: str, query: str) -> None:
    for made in (*pieces_of([text]), *(term.tsquery() for term in parse_words(query))):
        quoted = made.split("'")[1::2]
        assert all(word and not any(letter in word for letter in "\\:'* \x00") for word in quoted)


@given(st.lists(st.sampled_from("ab北京 "), min_size=1, max_size=30).map("".join), st.data())
def test_any_part_of_an_unspaced_text_is_found_in_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    part = text[start:end].strip("ab ")
    if part and " " not in part:
        assert finds(part, text) is not None


def test_long_texts_are_cut_into_pieces_that_keep_phrases() -> None:
    words = [f"w{number}" for number in range(PIECE_WORDS * 2 + 500)]
    pieces = list(pieces_of([" ".join(words)]))
    assert len(pieces) == 3
    for at in (PIECE_WORDS - 2, PIECE_WORDS - 1, PIECE_WORDS, PIECE_WORDS * 2 - 20):
        pair = (f"'{words[at]}':", f"'{words[at + 1]}':")
        assert any(all(one in piece for one in pair) for piece in pieces)
    for piece in pieces_of(["again " * 2_000]):
        assert piece.count(",") < 255


@given(st.text("กนิีंदनािীবअ ab日", min_size=1, max_size=30), st.data())
def test_the_index_has_every_word_of_the_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    indexed = {word.indexed for word in words_of(text)}
    for term in parse_words(f'"{text[start:end]}"'):
        if find_first(words_of(text), [term]) is None:
            continue
        for lexeme in term.lexemes:
            assert lexeme.indexed == "x" or any(word.startswith(lexeme.indexed) for word in indexed)


@pytest.mark.parametrize(
    ("query", "needs_text"),
    [
        ("दिन", True),
        ("दन", True),
        ("กิน", True),
        ("北京大学", False),
        ("한글", False),
        ("naïve", False),
        ("a*", False),
    ],
)
def test_only_the_text_distinguishes_words_by_vowel_signs(query: str, needs_text: bool) -> None:
    (term,) = parse_words(query)
    assert term.needs_text is needs_text
    assert not any(letter in term.tsquery() for letter in "ิีि")


def test_index_has_each_position_of_a_word() -> None:
    assert list(pieces_of(["one two one"])) == ["'one':1,3 'two':2"]


def test_texts_of_one_entry_form_no_common_phrase() -> None:
    (piece,) = pieces_of(["one two", "three"])
    places = dict(word.split(":") for word in piece.split())
    assert int(places["'three'"]) > int(places["'two'"]) + 1


@pytest.mark.parametrize("pattern", ["(a)\\1", "(?=a)", "(?<!a)b", "a(", "[", "a{100000}", "\\p{Nope}"])
def test_patterns_without_a_linear_time_bound_are_refused(pattern: str) -> None:
    with pytest.raises(MeshError) as error:
        compile_pattern(pattern)
    assert error.value.facts["why"] == "PATTERN"


def test_patterns_run_within_their_steps_and_the_text_limit() -> None:
    assert compile_pattern(r"\pL+\d")("a" * 400_000) is None
    for pattern, text in ((r"\pL+\d", "a" * 500_000), (r"\pL+\d", "é" * 250_000), ("(?:a?){1000}" * 3, "")):
        with pytest.raises(MeshError) as error:
            compile_pattern(pattern)(text)
        assert error.value.facts["why"] == "COST"


def test_compiled_patterns_are_not_cached() -> None:
    compile_pattern("a+")
    with pytest.raises(MeshError):
        compile_pattern("(?:a?){1000}" * 3)
    assert re2._Regexp._make.cache_info().currsize == 0


def test_patterns_that_are_slow_elsewhere_run_in_linear_time() -> None:
    find = compile_pattern("(a*)*(a|aa)+$")
    assert find("a" * 50_000 + "!") is None
    assert compile_pattern("ü+")("aüü") == (1, 3)


def test_pieces_are_within_the_limit_of_the_database() -> None:
    letters = "абвгдежзиклмнопрст"
    words = ["".join(letters[int(digit)] for digit in f"{number:0200}") for number in range(PIECE_WORDS)]
    pieces = list(pieces_of([" ".join(words)]))
    assert all(len(piece.encode()) < 1024 * 1024 for piece in pieces)
    assert all(any(f"'{word}'" in piece for piece in pieces) for word in words)


@given(st.integers(1, 120))
def test_the_parts_of_a_phrase_cover_it(count: int) -> None:
    (term,) = parse_words('"' + " ".join(f"w{number}" for number in range(count)) + '"')
    parts = parts_of(term)
    assert [part for part in parts if len(part.lexemes) > 32] == []
    assert [lexeme for lexeme in term.lexemes if not any(lexeme in part.lexemes for part in parts)] == []
    for one, following in pairwise(parts):
        assert len(set(one.lexemes) & set(following.lexemes)) == 16
    assert count > 32 or parts == [term]
