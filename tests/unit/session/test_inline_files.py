"""Inline files: base64 that attachment-blob accepts has the same bytes here, and no other text has any."""

from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.base64_strict import Base64Refused, decode_strict
from spawnmesh_session.domain.inline_files import bytes_of_base64

_near_base64 = st.text(st.sampled_from("ABCDwxyz0189+/=-_ \t\n\u00a0\u00e9"), max_size=12)
_base64 = st.binary(max_size=40).map(lambda data: b64encode(data).decode())


@given(_near_base64 | _base64 | st.tuples(_base64, st.sampled_from((" ", "\r\n", "="))).map("".join))
def test_a_text_has_the_bytes_that_attachment_blob_decodes(text: str) -> None:
    try:
        expected = decode_strict(text, max_bytes=1024)
    except Base64Refused:
        expected = None
    assert bytes_of_base64(text) == expected
