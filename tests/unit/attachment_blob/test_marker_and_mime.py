"""The marker of a redacted attachment, and MIME types that are accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.marker import is_redaction_marker
from spawnmesh_attachment_blob.domain.mime import mime_type_problem


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"$redacted":"attachment"}', True),
        (b'\t{"bytes": 3, "$redacted": "attachment"}\n', True),
        ('{"\\u0024redacted": "attachment"}', True),
        ('{"$redacted": "\\u0061ttachment"}', True),
        ('{"$r\\u0065dacted": "attachment"}', True),
        ('{"$redacted": "other"}', False),
        ('{"inner": {"$redacted": "attachment"}}', False),
        ('[{"$redacted": "attachment"}]', False),
        ('"$redacted"', False),
        ('{"$redacted": "attachment"', False),
        (b'\xff{"$redacted": "attachment"}', False),
        ('{"redacted": ' + "[" * 100_000, False),
        ("", False),
    ],
    ids=range(13),
)
def test_redaction_marker(content: str | bytes, expected: bool) -> None:
    assert is_redaction_marker(content) is expected


@given(st.binary())
def test_any_bytes_can_be_searched_for_a_marker(content: bytes) -> None:
    assert is_redaction_marker(content) is False


@pytest.mark.parametrize("mime_type", ["", "text/plain; charset=utf-8", "x" * 127, "größe/ü"])
def test_mime_type_is_kept(mime_type: str) -> None:
    assert mime_type_problem(mime_type) is None


@pytest.mark.parametrize(
    "mime_type", ["x" * 128, "a\x00b", "a\r\nb", "a\x7f", "a\x85b", "a\u200bb", "a\u2028b"]
)
def test_mime_type_is_refused(mime_type: str) -> None:
    assert mime_type_problem(mime_type) is not None
