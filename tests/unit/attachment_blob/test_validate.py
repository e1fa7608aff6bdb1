import base64
import hashlib
import tracemalloc
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain import (
    AttachmentLimits,
    AttachmentReason,
    AttachmentRefused,
    Encoding,
    InlineItem,
    ValidFile,
    validate,
)
from spawnmesh_attachment_blob.domain.utf8_size import utf8_size

MIB = 1024 * 1024
HOSTILE_CHARS = 64 * MIB
SMALL = AttachmentLimits(max_files=2, max_file_bytes=8, max_total_bytes=12)


def text(name: str, content: str) -> InlineItem:
    return InlineItem(name, content, Encoding.UTF8, "text/plain")


def refusal(items: list[InlineItem], limits: AttachmentLimits = SMALL) -> AttachmentRefused:
    with pytest.raises(AttachmentRefused) as refused:
        validate(items, limits)
    return refused.value


def test_files_keep_order_type_and_hash() -> None:
    items = [text("b", "héllo"), InlineItem("a", "AAE=", Encoding.BASE64, "application/x-two")]
    assert validate(items, SMALL) == [
        ValidFile("b", "héllo".encode(), hashlib.sha256("héllo".encode()).hexdigest(), "text/plain"),
        ValidFile("a", b"\0\1", hashlib.sha256(b"\0\1").hexdigest(), "application/x-two"),
    ]


def test_defaults_are_fifty_files_of_one_mib_and_five_in_all() -> None:
    assert AttachmentLimits() == AttachmentLimits(True, 50, MIB, 5 * MIB)


def test_an_empty_list_passes_even_when_disabled() -> None:
    assert validate([], AttachmentLimits(enabled=False, max_files=0)) == []


def test_disabled_is_checked_before_the_count() -> None:
    limits = AttachmentLimits(enabled=False, max_files=0)
    assert refusal([text("/", "x")], limits).reason is AttachmentReason.DISABLED


def test_count_is_checked_before_any_item() -> None:
    refused = refusal([text("/", "")] * 3)
    assert (refused.reason, refused.facts) == (AttachmentReason.FILE_COUNT_EXCEEDED, {"count": 3, "limit": 2})


@pytest.mark.parametrize("encoding", [*Encoding])
def test_name_is_checked_before_content(encoding: Encoding) -> None:
    refused = refusal([InlineItem("a/b", "!" * 100, encoding)])
    assert refused.reason is AttachmentReason.INVALID_NAME


def test_duplicate_is_checked_before_content() -> None:
    refused = refusal([text("E\u0301.txt", ""), InlineItem("\u00e9.TXT", "!!", Encoding.BASE64)])
    assert (refused.reason, refused.facts) == (
        AttachmentReason.DUPLICATE_NAME,
        {"index": 1, "first_index": 0},
    )


def test_first_bad_item_decides() -> None:
    assert refusal([text("a", "x" * 9), text("/", "")]).reason is AttachmentReason.FILE_BYTES_EXCEEDED


def test_encoding_is_checked_before_the_total() -> None:
    items = [text("a", "x" * 8), InlineItem("b", "QUFBQUFBQR==", Encoding.BASE64)]
    assert refusal(items).reason is AttachmentReason.INVALID_BASE64_OR_TOO_LARGE


def test_file_size_is_checked_before_the_total() -> None:
    refused = refusal([text("a", "x" * 8), text("b", "x" * 9)])
    assert (refused.reason, refused.facts) == (
        AttachmentReason.FILE_BYTES_EXCEEDED,
        {"index": 1, "limit_bytes": 8},
    )


def test_total_is_refused_at_the_item_that_exceeds_it() -> None:
    assert len(validate([text("a", "x" * 8), text("b", "x" * 4)], SMALL)) == 2
    refused = refusal([text("a", "x" * 8), text("b", "x" * 5)])
    assert (refused.reason, refused.facts) == (
        AttachmentReason.TOTAL_BYTES_EXCEEDED,
        {"index": 1, "limit_bytes": 12},
    )


@pytest.mark.parametrize(
    "spelled", ["", "UTF8", "utf-8", "BASE64", "base64url", "hex", "unrecognized", "utf8 "]
)
def test_encoding_spelled_in_any_other_way_is_refused(spelled: str) -> None:
    refused = refusal([InlineItem("a", "", Encoding.from_text(spelled))])
    assert refused.reason is AttachmentReason.INVALID_ENCODING


def test_lone_surrogate_in_content_is_refused_without_quoting_it() -> None:
    refused = refusal([text("a", "ab\ud800c")])
    assert (refused.reason, refused.facts) == (
        AttachmentReason.INVALID_ENCODING,
        {"index": 0, "problem": "lone_surrogate"},
    )
    assert refused.__suppress_context__


def test_size_counts_bytes_and_not_characters() -> None:
    assert validate([text("a", "😀😀")], SMALL)[0].data == "😀😀".encode()
    assert refusal([text("a", "😀😀é")]).reason is AttachmentReason.FILE_BYTES_EXCEEDED


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_refused_name_is_never_echoed(name: str) -> None:
    marked = f"SECRET{name}/"
    refused = refusal([text("ok", ""), text(marked, "")])
    assert refused.facts["index"] == 1
    assert "SECRET" not in f"{refused} {refused!r} {refused.facts}"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(0, 400))
def test_counted_size_is_the_encoded_size(content: str, at_most: int) -> None:
    size = len(content.encode())
    assert utf8_size(content, at_most=at_most) == (size if size <= at_most else None)


def test_counted_size_holds_across_slices() -> None:
    content = "a" + "😀é" * 50_000
    assert utf8_size(content, at_most=10 * MIB) == len(content.encode())
    assert utf8_size(content, at_most=200_000) is None


@pytest.mark.parametrize("encoding", [Encoding.UTF8, Encoding.BASE64])
@pytest.mark.parametrize("filler", [" ", "A", "\u00e9", "\U0001f600", "\n"])
def test_oversized_content_is_refused_without_a_copy(encoding: Encoding, filler: str) -> None:
    chars = HOSTILE_CHARS if ord(filler) < 256 else HOSTILE_CHARS // 4
    item = InlineItem("a", filler * chars, encoding)
    tracemalloc.start()
    try:
        refusal([item], AttachmentLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB // 4


class LengthOnly(str):
    """A text that may be measured and not read."""

    def _read(self, *_: object) -> NoReturn:
        raise AssertionError("the text was read")

    isascii = encode = translate = __iter__ = __getitem__ = _read  # type: ignore[assignment]


def test_large_content_is_refused_by_its_length() -> None:
    content = LengthOnly(" " * (64 * MIB))
    for encoding, reason in (
        (Encoding.UTF8, AttachmentReason.FILE_BYTES_EXCEEDED),
        (Encoding.BASE64, AttachmentReason.INVALID_BASE64_OR_TOO_LARGE),
    ):
        tracemalloc.start()
        try:
            assert refusal([InlineItem("a", content, encoding)], AttachmentLimits()).reason is reason
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MIB // 16


def test_oversized_name_is_refused_without_a_copy() -> None:
    item = text("\u202e" * HOSTILE_CHARS, "")
    tracemalloc.start()
    try:
        assert refusal([item]).facts == {"index": 0, "rule": "too_long"}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB // 4


def test_text_that_only_encodes_too_large_is_counted_in_slices() -> None:
    # The number of characters is within the limit; the number of bytes is four times as large.
    content = "😀" * (MIB // 2)
    tracemalloc.start()
    try:
        assert (
            refusal([text("a", content)], AttachmentLimits()).reason is AttachmentReason.FILE_BYTES_EXCEEDED
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB // 2


def test_base64_padded_with_blanks_to_the_last_allowed_length_costs_a_few_copies() -> None:
    spelled = base64.b64encode(b"x" * MIB).decode()
    content = spelled + " " * len(spelled)
    tracemalloc.start()
    try:
        validate([InlineItem("a", content, Encoding.BASE64)], AttachmentLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * MIB
