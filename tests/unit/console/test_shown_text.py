"""Text of models, tools and people, as the eye sees it."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_console.domain.shown_text import beginning, clipped, harmless, without_unseen

KEPT = {"\t", "\n"}
DIRECTIONS = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
JOINERS = {*"\u200c\u200d\ufe0e\ufe0f"}
"""They have no shape either, and Persian, Hindi and emoji are wrong without them."""

WITHOUT_SHAPE = {
    *"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u200b\u2028\u2029\u2800\u3164\ufeff\uffa0\U00016fe4\U0001d159",
    *map(chr, range(0x180B, 0x1810)),
    *map(chr, range(0x2060, 0x2070)),
    *map(chr, range(0xFE00, 0xFE0E)),
    *map(chr, range(0xFFF0, 0xFFFC)),
    *map(chr, range(0x13430, 0x13441)),
    *map(chr, range(0x1BCA0, 0x1BCA4)),
    *map(chr, range(0x1D173, 0x1D17B)),
    *map(chr, range(0xE0000, 0xE1000)),  # Tags and selectors of variants: letters for a model alone.
}
NEEDS_JOINERS = "می☎👩🏳क👧"

any_text = st.text(
    st.characters(exclude_categories=[])
    | st.sampled_from(sorted(DIRECTIONS | WITHOUT_SHAPE))
    | st.sampled_from(sorted({*JOINERS, *NEEDS_JOINERS}))
)


def is_unseen(character: str) -> bool:
    """Return whether a browser obeys or hides the character, or cannot send it."""
    category = unicodedata.category(character)
    is_control = category in ("Cc", "Cs") and character not in KEPT
    return is_control or character in DIRECTIONS | WITHOUT_SHAPE


@given(any_text)
@example("a\r\nb\rc")
@example("\x1b[31mred\x1b[0m\x07\x7f\x9b")
@example("evil\u202egnp.exe")
@example("ignore\U000e0069\U000e0067")
@example("\ud800 half of a pair")
@example("☎\ufe0f\ufe0f")
@example("می\u200c\u200d")
def test_each_unseen_character_becomes_a_sign_and_the_others_stay(text: str) -> None:
    shown = harmless(text)
    assert not [one for one in shown if is_unseen(one)]
    shown.encode()  # It can be sent.
    for place, one in enumerate(shown):
        if one in JOINERS:
            # It stands alone behind what needs it, except within an emoji of several.
            assert place > 0
            assert shown[place - 1] not in JOINERS or shown[place - 1 : place + 1] == "\ufe0f\u200d"
            assert not (shown[place - 1].isascii() and shown[place - 1].isalpha())
    expected = "".join("" if is_unseen(one) or one in JOINERS else one for one in text.replace("\r\n", "\n"))
    # Without the signs, the rest is the text without the unseen characters, in its order.
    rest = iter(shown)
    assert all(one in rest for one in expected)
    if len(expected) == len(text.replace("\r\n", "\n")):
        assert shown == expected


@given(any_text)
def test_a_harmless_text_stays_as_it_is(text: str) -> None:
    assert harmless(harmless(text)) == harmless(text)


@given(any_text)
def test_nothing_unseen_is_left_in_a_name(text: str) -> None:
    name = without_unseen(text)
    assert not [one for one in name if is_unseen(one)]
    name.encode()


def test_signs_name_the_character() -> None:
    assert harmless("a\x00b\x1bc\x7fd") == "a␀b␛c␡d"
    assert harmless("a\u202eb\U000e0041") == "a⟨U+202E⟩b⟨U+E0041⟩"
    assert harmless("a\r\nb\rc\td") == "a\nb␍c\td"


def test_texts_of_people_in_all_scripts_stay() -> None:
    for text in (
        "Grüße, 日本語, العربية, עברית, हिन्दी, ไทย",
        "می\u200cخواهم",
        "क्\u200dष ශ්\u200dරී",
        "👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 ☎\ufe0e ❤\ufe0f 👩🏽\u200d⚕\ufe0f 1\ufe0f\u20e3",
        "a\u00a0b\u2009c\u3000d",
        "e\u0301 ﷺ ½ €",
    ):
        assert harmless(text) == without_unseen(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "a{}b", "{}", "1{}", "☎{}{}", "می{}{}", "\u2800{}",
        *(f"a{one}b" for one in "\ufe00\ufe0f\u200c\u200d\u2800\u180b\u180f\ufff0\U00016fe4\U0001bca0\U0001d159\U00013440\U000e0100"),
    ],
)  # fmt: skip
def test_no_text_can_be_hidden_in_joiners_and_selectors(text: str) -> None:
    for joiner in JOINERS:
        shown = harmless(text.replace("{}", joiner))
        assert not [one for one in shown if one in JOINERS or is_unseen(one)]
        assert "⟨U+" in shown


@given(st.text(max_size=30), st.integers(min_value=0, max_value=40))
def test_a_beginning_and_the_number_of_characters_behind_it(text: str, most: int) -> None:
    begin, left_out = beginning(text, most)
    assert text.startswith(begin)
    assert len(begin) + left_out == len(text)
    assert len(begin) <= most
    assert left_out == 0 or len(begin) == most


@given(st.text(), st.integers(0, 20))
def test_a_clipped_text_is_harmless_and_in_one_line(text: str, max_count: int) -> None:
    shown = clipped(text, max_count)
    assert harmless(shown) == shown
    assert not {*"\n\t"} & {*shown}
    assert shown.endswith("…") or len(text) <= max_count


def test_a_long_text_is_clipped_with_a_sign() -> None:
    assert (clipped("a  b\nc", 9), clipped("abcdef", 3), clipped("a\u202eb", 9)) == (
        "a b c",
        "abc…",
        "a⟨U+202E⟩b",
    )
