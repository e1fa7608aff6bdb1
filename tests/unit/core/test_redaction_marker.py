"""The marker of a redacted attachment, as the content of a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.redaction_marker import is_marker_content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"$redacted":"attachment"}', True),
        (b'\t{"bytes": 3, "$redacted": "attachment"}\n', True),
        ('{"\\u0024redacted": "attachment"}', True),
        ('{"$redacted": "\\u0061ttachment"}', True),
        ('{"$r\\u0065dacted": "attachment"}', True),
        ('{"$redacted": "other"}', True),
        ('\ufeff{"$redacted":"attachment"}', True),
        (b'\xef\xbb\xbf{"$redacted":"attachment"}', True),
        ('"{\\"$redacted\\":\\"attachment\\"}"', True),
        ('[["{\\"$redacted\\":1}"]]', True),
        ('{"inner": {"$redacted": "attachment"}}', False),
        ('[{"$redacted": "attachment"}]', True),
        ('[{"$redacted": "attachment"}, 1]', False),
        ('"$redacted"', False),
        ('{"$redacted": "attachment"', False),
        (b'\xff{"$redacted": "attachment"}', False),
        ('{"redacted": ' + "[" * 100_000, False),
        ("", False),
    ],
    ids=range(18),
)
def test_redaction_marker(content: str | bytes, expected: bool) -> None:
    assert is_marker_content(content) is expected


@given(st.binary())
def test_any_bytes_can_be_searched_for_a_marker(content: bytes) -> None:
    assert is_marker_content(content) is False
