"""Room in a storage quota."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain.storage import StorageUsage

BYTES = st.integers(0, 2**40)
NEAR = st.integers(0, 100)


@given(
    st.one_of(st.builds(StorageUsage, BYTES, BYTES, BYTES), st.builds(StorageUsage, NEAR, NEAR, NEAR)), NEAR
)
def test_bytes_fit_if_the_quota_holds_with_them_and_none_need_no_room(usage: StorageUsage, size: int) -> None:
    fits = usage.stored_bytes + usage.uploading_bytes + size <= usage.max_stored_bytes
    assert usage.has_room(size) == (size == 0 or fits)


@given(st.builds(StorageUsage, NEAR, NEAR, NEAR))
def test_free_bytes_are_the_most_that_fit(usage: StorageUsage) -> None:
    assert usage.has_room(usage.free_bytes)
    assert not usage.has_room(usage.free_bytes + 1)
