"""Which purge of a tenant adds something, and which settings begin a new life of it."""

import pytest
from spawnmesh_postgres.tenant_purges import Purge, merge_purge


@pytest.mark.parametrize(
    ("stored", "version", "current", "merged"),
    [
        (None, 3, 3, 3),
        (None, 3, None, 3),
        (None, 3, 4, None),  # The tenant was created again.
        (None, 0, 4, 0),  # No version: any tenant.
        (Purge(3, is_done=False), 3, None, 3),
        (Purge(3, is_done=True), 5, None, 5),
        (Purge(5, is_done=False), 3, None, None),
        (Purge(0, is_done=False), 3, None, 3),
        (Purge(3, is_done=False), 0, None, 3),
    ],
)
def test_purges_merge_and_a_late_one_changes_nothing(
    stored: Purge | None, version: int, current: int | None, merged: int | None
) -> None:
    assert merge_purge(stored, version, current) == merged


@pytest.mark.parametrize(
    ("purge", "version", "is_over"),
    [
        (Purge(3, is_done=True), 3, False),
        (Purge(3, is_done=False), 4, True),  # A late purge does not block the new tenant.
        (Purge(3, is_done=True), 2, False),
        (Purge(0, is_done=True), 1, True),
        (Purge(0, is_done=False), 1, False),
        (Purge(3, is_done=True), 0, True),
        (Purge(3, is_done=False), 0, False),
    ],
)
def test_newer_settings_end_a_purge(purge: Purge, version: int, *, is_over: bool) -> None:
    assert purge.is_over_for(version) is is_over
