"""Text of models, tools and people, as the eye sees it."""

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_console.domain.shown_text import beginning, harmless

KEPT = {"\t", "\n"}
DIRECTIONS = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
WITHOUT_SHAPE = {
    *"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u2028\u2029\u3164\ufeff\uffa0\ufff9\ufffa\ufffb",
    *map(chr, range(0x2060, 0x2070)),
    *map(chr, range(0x1D173, 0x1D17B)),
    *map(chr, range(0xE0000, 0xE1000)),  # Tags and selectors of variants: letters for a model alone.
}
NEEDED = "\u200c\u200d\ufe0e\ufe0f"
"""They have no shape either, and Persian, Hindi and emoji are wrong without them."""

any_text = st.text(st.characters(exclude_categories=[]) | st.sampled_from(sorted(DIRECTIONS | WITHOUT_SHAPE)))


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
def test_each_unseen_character_becomes_a_sign_and_the_others_stay(text: str) -> None:
    shown = harmless(text)
    assert not [one for one in shown if is_unseen(one)]
    shown.encode()  # It can be sent.
    expected = "".join("" if is_unseen(one) else one for one in text.replace("\r\n", "\n"))
    # What is left without the signs is the text without the unseen characters, in its order.
    rest = iter(shown)
    assert all(one in rest for one in expected)
    if len(expected) == len(text.replace("\r\n", "\n")):
        assert shown == expected


@given(any_text)
def test_a_harmless_text_stays_as_it_is(text: str) -> None:
    assert harmless(harmless(text)) == harmless(text)


def test_signs_name_the_character() -> None:
    assert harmless("a\x00b\x1bc\x7fd") == "a␀b␛c␡d"
    assert harmless("a\u202eb\U000e0041") == "a⟨U+202E⟩b⟨U+E0041⟩"
    assert harmless("a\r\nb\rc\td") == "a\nb␍c\td"


def test_texts_of_people_in_all_scripts_stay() -> None:
    for text in (
        "Grüße, 日本語, العربية, עברית, हिन्दी, ไทย",
        "می\u200cخواهم",
        "👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 ☎\ufe0e",
        "a\u00a0b\u2009c\u3000d",
        "e\u0301 ﷺ ½ €",
        NEEDED,
    ):
        assert harmless(text) == text


@given(st.text(max_size=30), st.integers(min_value=0, max_value=40))
def test_a_beginning_and_the_number_of_characters_behind_it(text: str, most: int) -> None:
    begin, left_out = beginning(text, most)
    assert text.startswith(begin)
    assert len(begin) + left_out == len(text)
    assert len(begin) <= most
    assert left_out == 0 or len(begin) == most
