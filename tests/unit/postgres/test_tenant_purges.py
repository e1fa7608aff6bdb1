"""Which purge of a tenant adds something, and which settings begin a new life of it."""

from datetime import UTC, datetime

import pytest
from spawnmesh_postgres.tenant_participant import ParticipationState, participation_state
from spawnmesh_postgres.tenant_purges import Purge, merge_purge

BEGUN, ENDED = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stored", "version", "current", "merged"),
    [
        (None, 3, 3, 3),
        (None, 3, None, 3),
        (None, 3, 4, None),  # The tenant was created again.
        (None, 0, 4, 0),  # No version: any tenant.
        (Purge(3, BEGUN), 3, None, 3),
        (Purge(3, BEGUN, ENDED), 5, None, 5),
        (Purge(5, BEGUN), 3, None, None),
        (Purge(0, BEGUN), 3, None, 3),
        (Purge(3, BEGUN), 0, None, 3),
    ],
)
def test_purges_merge_and_a_late_one_changes_nothing(
    stored: Purge | None, version: int, current: int | None, merged: int | None
) -> None:
    assert merge_purge(stored, version, current) == merged


@pytest.mark.parametrize(
    ("purge", "version", "is_over"),
    [
        (Purge(3, BEGUN, ENDED), 3, False),
        (Purge(3, BEGUN), 4, True),  # A late purge does not block the new tenant.
        (Purge(3, BEGUN, ENDED), 2, False),
        (Purge(0, BEGUN, ENDED), 1, True),
        (Purge(0, BEGUN), 1, False),
        (Purge(3, BEGUN, ENDED), 0, True),
        (Purge(3, BEGUN), 0, False),
    ],
)
def test_newer_settings_end_a_purge(purge: Purge, version: int, *, is_over: bool) -> None:
    assert purge.is_over_for(version) is is_over


@pytest.mark.parametrize(
    ("purge", "settings_version", "state"),
    [
        (None, None, ParticipationState.UNKNOWN),
        (None, 1, ParticipationState.PREPARED),
        (Purge(1, BEGUN), 1, ParticipationState.PURGING),
        (Purge(1, BEGUN), None, ParticipationState.PURGING),
        (Purge(1, BEGUN, ENDED), None, ParticipationState.PURGED),
    ],
)
def test_state_of_a_tenant_in_a_service(
    purge: Purge | None, settings_version: int | None, state: ParticipationState
) -> None:
    assert participation_state(purge, settings_version) is state
