"""Tenants in words."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh.errors.v1.reason_pb2 import REASON_DEPENDENCY_UNAVAILABLE
from spawnmesh.session.v1.tenant_pb2 import TenantState
from spawnmesh.session.v1.tenant_service_pb2 import ServiceTenantStatus
from spawnmesh.tenancy.v1.tenant_status_pb2 import ParticipationState
from spawnmesh_console.clients.tenants import in_service
from spawnmesh_console.domain.tenants import (
    DeletionProgress,
    ShownTenant,
    StoredKind,
    TenantInService,
    UsedStorage,
    changes_soon,
    newest_version,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TENANT = ShownTenant("acme", "Acme", "ACTIVE", 3, NOW, None)
CURRENT = TenantInService("transcript", "PREPARED", settings_version=3)
BEHIND = replace(CURRENT, settings_version=2)
SILENT = TenantInService("hook", error_reason="DEPENDENCY_UNAVAILABLE")


def test_all_states_of_the_contract_are_known() -> None:
    states = [name.removeprefix("TENANT_STATE_") for name in TenantState.keys()[1:]]
    assert [one for one in states if replace(TENANT, state_name=one).state.word == "unknown"] == []
    names = [name.removeprefix("PARTICIPATION_STATE_") for name in ParticipationState.keys()[1:]]
    assert [one for one in names if TenantInService("hook", one).state.word == "unknown"] == []
    assert replace(TENANT, state_name="NEWER").state.word == "unknown"


def test_a_service_that_acts_on_older_settings_says_so_by_a_shape() -> None:
    current, behind = CURRENT.settings_state(3), BEHIND.settings_state(3)
    assert current is not None
    assert behind is not None
    assert (current.word, current.icon) == ("settings 3, current", "succeeded")
    assert (behind.word, behind.icon) == ("settings 2, behind 3", "warning")
    assert replace(CURRENT, participation="PURGED").settings_state(3) is None
    assert SILENT.settings_state(3) is None


def test_a_service_that_does_not_answer_has_the_reason() -> None:
    silent = in_service(ServiceTenantStatus(service="hook", error_reason=REASON_DEPENDENCY_UNAVAILABLE))
    assert silent == SILENT
    assert (silent.state.word, silent.state.icon) == ("no answer", "failed")
    newer = in_service(ServiceTenantStatus(service="hook", error_reason=99_999))  # type: ignore[arg-type]
    assert newer.state.word == "no answer"


@pytest.mark.parametrize(
    ("tenant", "services", "is_live"),
    [
        (TENANT, [CURRENT], False),
        (TENANT, [CURRENT, BEHIND], True),
        (TENANT, [CURRENT, SILENT], True),
        (TENANT, [replace(CURRENT, participation="PURGING")], True),
        (replace(TENANT, state_name="DELETING"), [], True),
        (replace(TENANT, state_name="DELETED"), [replace(CURRENT, participation="PURGED")], False),
    ],
)
def test_a_page_is_kept_up_to_date_while_something_goes_on(
    tenant: ShownTenant, services: list[TenantInService], is_live: bool
) -> None:
    assert changes_soon(tenant, services) is is_live


def test_a_service_that_was_read_later_can_have_newer_settings() -> None:
    newer = replace(CURRENT, service="session", settings_version=4)
    assert newest_version(TENANT, [newer, CURRENT]) == 4
    assert newest_version(TENANT, [BEHIND, SILENT]) == 3
    assert newest_version(TENANT, []) == 3
    assert changes_soon(TENANT, [newer, CURRENT])


def test_what_a_service_stores_says_where_its_count_stops() -> None:
    stored = replace(CURRENT, stored=(StoredKind("entries", 500, True), StoredKind("tenants", 1, False)))
    assert stored.stored_texts == ["entries 500+", "tenants 1"]
    assert UsedStorage(1024, 0, 2**30).text == "1.0 KiB of 1.0 GiB"
    assert UsedStorage(0, 2048, 2**30).text == "0 B of 1.0 GiB, 2.0 KiB in uploads"


def test_a_deletion_counts_in_words() -> None:
    deletion = DeletionProgress(NOW, None, 0, 1, 1200, 0, "")
    assert deletion.removed == "1 session, 1,200 transcripts, 0 objects"
