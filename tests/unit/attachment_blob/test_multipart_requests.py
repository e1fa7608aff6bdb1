"""The minio library has no public methods for the single requests of a multipart upload."""

import pytest
from minio import Minio


@pytest.mark.parametrize(
    "name",
    ["create_multipart_upload", "upload_part", "abort_multipart_upload", "list_multipart_uploads"],
)
def test_the_private_method_is_still_needed(name: str) -> None:
    assert callable(getattr(Minio, f"_{name}")), "clients/multiparts.py calls it"
    assert not hasattr(Minio, name), "call the public method in clients/multiparts.py"
