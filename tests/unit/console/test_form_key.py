"""The key in each form, masked anew for each page."""

from base64 import urlsafe_b64decode

from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_console.web.form_key import is_masked, masked

KEY = "zUyEKqHVjLxF1q0tSWPxqAM1vQ9vBxKX"
keys = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=60)


@given(keys, keys)
def test_a_masked_key_stands_for_its_key_alone(key: str, other: str) -> None:
    assert is_masked(masked(key), key)
    assert is_masked(masked(key), other) == (key == other)


@given(st.text(max_size=120))
@example("")
@example("=")
@example("AAAA")
@example(KEY)
def test_any_other_text_is_refused(text: str) -> None:
    assert not is_masked(text, KEY)


@given(st.binary(max_size=100))
def test_bytes_that_are_no_masked_key_are_refused(noise: bytes) -> None:
    half = len(noise) // 2
    mixed = bytes(a ^ b for a, b in zip(noise[:half], noise[half:], strict=False))
    text = noise.hex()
    assert is_masked(text, KEY) == (mixed == KEY.encode() and bytes.fromhex(text) == b"")


def test_each_page_has_another_text_without_the_key() -> None:
    texts = {masked(KEY) for _ in range(100)}
    assert len(texts) == 100
    # No byte is the same in all of them: an observer of lengths has nothing to guess.
    decoded = [urlsafe_b64decode(text) for text in texts]
    assert all(len({one[place] for one in decoded}) > 1 for place in range(len(decoded[0])))
    assert not any(KEY.encode() in one for one in decoded)


def test_a_truncated_key_is_refused() -> None:
    text = masked(KEY)
    for length in range(0, len(text), 4):
        assert not is_masked(text[:length], KEY)
