import base64
import binascii
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.base64_strict import Base64Problem, Base64Refused, decode_strict

ALPHABET = string.ascii_letters + string.digits + "+/"
LARGE = 10_000


def problem_of(text: str, max_bytes: int = LARGE) -> Base64Problem:
    with pytest.raises(Base64Refused) as refused:
        decode_strict(text, max_bytes=max_bytes)
    return refused.value.problem


def decoded_by_stdlib(text: str) -> bytes | None:
    """Decode with the standard library, and require the encoding that it would produce."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return data if data and base64.b64encode(data).decode() == text else None


@given(st.binary(min_size=1, max_size=400))
def test_standard_encoding_is_decoded(data: bytes) -> None:
    assert decode_strict(base64.b64encode(data).decode(), max_bytes=len(data)) == data


@given(
    st.one_of(
        st.text(ALPHABET + "=", max_size=24),
        st.text(ALPHABET, max_size=24).map(lambda text: text + "=" * (-len(text) % 4)),
        st.text(ALPHABET + "=-_!\u00e9", max_size=12),
    )
)
def test_result_agrees_with_the_standard_library(text: str) -> None:
    try:
        mine: bytes | None = decode_strict(text, max_bytes=LARGE)
    except Base64Refused:
        mine = None
    assert mine == decoded_by_stdlib(text)


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from(" \t\n\r\v\f"))),
)
def test_ascii_whitespace_anywhere_changes_nothing(data: bytes, blanks: list[tuple[int, str]]) -> None:
    text = base64.b64encode(data).decode()
    for position, blank in blanks:
        text = text[:position] + blank + text[position:]
    assert decode_strict(text, max_bytes=LARGE) == data


@given(st.binary(min_size=2, max_size=100))
def test_one_byte_over_the_bound_is_too_large(data: bytes) -> None:
    assert problem_of(base64.b64encode(data).decode(), max_bytes=len(data) - 1) is Base64Problem.TOO_LARGE


def test_raw_length_of_twice_the_largest_encoding_is_the_last_one_decoded() -> None:
    text = base64.b64encode(b"x" * 1024).decode()
    longest = text + " " * len(text)
    assert decode_strict(longest, max_bytes=1024) == b"x" * 1024
    assert problem_of(longest + " ", max_bytes=1024) is Base64Problem.TOO_LARGE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", Base64Problem.EMPTY),
        (" \n", Base64Problem.EMPTY),
        ("abc", Base64Problem.LENGTH),
        ("aGVsbG8", Base64Problem.LENGTH),
        ("aGVsbG8==", Base64Problem.LENGTH),
        ("====", Base64Problem.ALPHABET),
        ("A===", Base64Problem.ALPHABET),
        ("AA=A", Base64Problem.ALPHABET),
        ("AA==AAAA", Base64Problem.ALPHABET),
        ("-_-_", Base64Problem.ALPHABET),
        ("aGV\x00", Base64Problem.ALPHABET),
        ("aGVs\u00a0", Base64Problem.ALPHABET),
        ("aGV\x1c", Base64Problem.ALPHABET),
        ("ａGVs", Base64Problem.ALPHABET),
        ("QQ==QQ==", Base64Problem.ALPHABET),
        ("aGVsbG9=", Base64Problem.TRAILING_BITS),
        ("QR==", Base64Problem.TRAILING_BITS),
        ("data:text/plain;base64,aGVsbG8=", Base64Problem.LENGTH),
    ],
)
def test_non_canonical_encoding_is_refused(text: str, problem: Base64Problem) -> None:
    assert problem_of(text) is problem
