"""MIME types that are accepted."""

import pytest
from spawnmesh_attachment_blob.domain.mime import mime_type_problem


@pytest.mark.parametrize("mime_type", ["", "text/plain; charset=utf-8", "x" * 127, "größe/ü"])
def test_mime_type_is_kept(mime_type: str) -> None:
    assert mime_type_problem(mime_type) is None


@pytest.mark.parametrize(
    "mime_type", ["x" * 128, "a\x00b", "a\r\nb", "a\x7f", "a\x85b", "a\u200bb", "a\u2028b"]
)
def test_mime_type_is_refused(mime_type: str) -> None:
    assert mime_type_problem(mime_type) is not None
