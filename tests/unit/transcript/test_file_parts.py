"""Parts of files: complete characters, within limits, with an accurate `truncated`."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_transcript.domain.file_parts import (
    DEFAULT_BYTES,
    MAX_BYTES,
    Bytes,
    Content,
    LineCutter,
    Lines,
    cut_bytes,
    window_of,
)

texts = st.text(st.sampled_from("ab\né☃😀"), max_size=60)


def cut(data: bytes, asked: Bytes, *, is_text: bool = True) -> Content:
    window = window_of(asked, size=len(data))
    read = data[window.offset : window.offset + window.length]
    return cut_bytes(read, window.offset, asked, size=len(data), is_text=is_text)


def lines(data: bytes, asked: Lines, piece_size: int = 7) -> Content:
    cutter = LineCutter(asked)
    for start in range(0, len(data), piece_size):
        if cutter.feed(data[start : start + piece_size]):
            break
    return cutter.content(size=len(data))


@given(texts, st.integers(0, 80), st.integers(1, 80))
def test_a_byte_range_of_a_text_is_extended_to_complete_characters(
    text: str, offset: int, length: int
) -> None:
    data = text.encode()
    content = cut(data, Bytes(offset, length))
    content.data.decode()
    assert data[content.offset : content.next_offset] == content.data
    assert min(offset, len(data)) - 3 <= content.offset <= min(offset, len(data))
    assert len(content.data) <= length + 3
    assert content.truncated == (content.next_offset < min(len(data), offset + length))
    if offset < len(data):
        assert content.data, "who goes on at next_offset gets to the end"


@given(texts, st.integers(1, 9))
def test_successive_parts_give_the_complete_text(text: str, length: int) -> None:
    data, offset, read = text.encode(), 0, b""
    while offset < len(data):
        content = cut(data, Bytes(offset, length))
        read += content.data
        offset = content.next_offset
    assert read == data


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(1, 50))
def test_a_byte_range_of_binary_data_is_exact(data: bytes, offset: int, length: int) -> None:
    assert cut(data, Bytes(offset, length), is_text=False).data == data[offset : offset + length]


def test_limits() -> None:
    data = b"x" * (MAX_BYTES * 2)
    for asked, length, truncated in (
        (Bytes(0, 0), DEFAULT_BYTES, True),
        (Bytes(0, MAX_BYTES), MAX_BYTES, False),
        (Bytes(0, MAX_BYTES + 1), MAX_BYTES, True),
        (Bytes(len(data) - 5, 0), 5, False),
        (Bytes(len(data) + 5, 0), 0, False),
    ):
        content = cut(data, asked)
        assert (len(content.data), content.truncated) == (length, truncated), asked


@given(texts, st.integers(1, 8), st.integers(1, 8), st.integers(1, 20))
def test_a_line_range_has_the_lines_of_the_text(text: str, first: int, count: int, piece_size: int) -> None:
    data = text.encode()
    content = lines(data, Lines(first, count), piece_size)
    assert content.data == b"".join(data.splitlines(keepends=True)[first - 1 : first - 1 + count])
    assert data[content.offset : content.next_offset] == content.data
    assert not content.truncated


def test_lines_without_a_count_end_at_a_line_or_within_the_first() -> None:
    data = (b"0123456789abcde\n" * 10_000) + b"end"
    content = lines(data, Lines(3, 0), 4096)
    assert (content.offset, len(content.data), content.truncated) == (32, DEFAULT_BYTES, True)
    content = lines(data, Lines(10_000, 0), 4096)
    assert (content.data, content.truncated) == (b"0123456789abcde\nend", False)
    long = ("é" * MAX_BYTES).encode()
    content = lines(b"x\n" + long, Lines(2, 0), 4096)
    assert (content.offset, len(content.data), content.truncated) == (2, DEFAULT_BYTES, True)
    content = lines(b"xy" + long, Lines(1, 1), 4096)
    assert (len(content.data), content.truncated) == (MAX_BYTES, True)
    content = lines(b"x" + long, Lines(1, 1), 4096)
    assert (len(content.data), content.truncated) == (MAX_BYTES - 1, True)
    content.data.decode()
    many = lines(b"line\n" * 200_000, Lines(1, 150_000), 65_536)
    assert (len(many.data) % 5, len(many.data) > MAX_BYTES - 5, many.truncated) == (0, True, True)
