"""Tenants in words: their states, the progress of a deletion, and each service that knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.amounts import counted, size_text
from spawnmesh_console.domain.states import ShownState

_STATES = {
    "CREATING": ShownState("creation interrupted", "warning"),
    "ACTIVE": ShownState("active", "succeeded"),
    "DELETING": ShownState("being deleted", "running", is_live=True),
    "DELETED": ShownState("deleted", "closed"),
}
_PARTICIPATIONS = {
    "UNKNOWN": ShownState("not known here", "closed"),
    "PREPARED": ShownState("prepared", "succeeded"),
    "PURGING": ShownState("being purged", "running", is_live=True),
    "PURGED": ShownState("purged", "closed"),
}
_UNKNOWN = ShownState("unknown", "closed")
_NO_ANSWER = ShownState("no answer", "failed", is_live=True)
_PREPARED = "PREPARED"


@dataclass(frozen=True, slots=True)
class DeletionProgress:
    """The deletion of a tenant, and what it has removed so far."""

    request_time: datetime
    end_time: datetime | None
    killed_run_count: int
    deleted_session_count: int
    deleted_transcript_count: int
    deleted_object_count: int
    stalled_by: str

    @property
    def removed(self) -> str:
        """The removed things in words."""
        return ", ".join(
            (
                counted(self.deleted_session_count, "session", "sessions"),
                counted(self.deleted_transcript_count, "transcript", "transcripts"),
                counted(self.deleted_object_count, "object", "objects"),
            )
        )


@dataclass(frozen=True, slots=True)
class DeletionOperation:
    """The operation that deletes a tenant, and the subject of the operator's token that started
    it. `retry_reason` says why its newest step failed.
    """

    name: str
    subject: str
    is_done: bool
    retry_reason: str

    @property
    def state(self) -> ShownState:
        """Its state; the shape says it as well as the word."""
        if self.is_done:
            return ShownState("done", "succeeded")
        if self.retry_reason:
            return ShownState("tries again", "warning", is_live=True)
        return ShownState("running", "running", is_live=True)


@dataclass(frozen=True, slots=True)
class ShownTenant:
    """A tenant. Of a deleted one, only the id and the deletion are known."""

    tenant_id: str
    display_name: str
    state_name: str
    settings_version: int
    create_time: datetime | None
    deletion: DeletionProgress | None

    @property
    def state(self) -> ShownState:
        """Its state; the shape says it as well as the word."""
        return _STATES.get(self.state_name, _UNKNOWN)

    @property
    def is_deleted(self) -> bool:
        """True if nothing is left but the report of the deletion."""
        return self.state_name == "DELETED"


@dataclass(frozen=True, slots=True)
class StoredKind:
    """Things of one kind that a service stores, counted up to a number."""

    kind: str
    count: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class UsedStorage:
    """The bytes of a tenant in the blob store, and their limit."""

    stored_bytes: int
    uploading_bytes: int
    max_stored_bytes: int

    @property
    def text(self) -> str:
        """The use in words."""
        text = f"{size_text(self.stored_bytes)} of {size_text(self.max_stored_bytes)}"
        return f"{text}, {size_text(self.uploading_bytes)} in uploads" if self.uploading_bytes else text


@dataclass(frozen=True, slots=True)
class TenantInService:
    """A tenant in one service. Without a `participation` the service did not answer, and
    `error_reason` says why.
    """

    service: str
    participation: str = ""
    error_reason: str = ""
    settings_version: int = 0
    purge_begin_time: datetime | None = None
    purge_end_time: datetime | None = None
    stored: Sequence[StoredKind] = ()
    storage: UsedStorage | None = None

    @property
    def state(self) -> ShownState:
        """Its state; the shape says it as well as the word."""
        return _PARTICIPATIONS.get(self.participation, _UNKNOWN) if self.participation else _NO_ANSWER

    @property
    def stored_texts(self) -> list[str]:
        """The stored things in words."""
        return [f"{one.kind} {one.count:,}{'+' if one.has_more else ''}" for one in self.stored]

    def settings_state(self, newest_version: int) -> ShownState | None:
        """Return whether it acts on the newest settings; None if it acts on none."""
        if self.participation != _PREPARED:
            return None
        if self.settings_version >= newest_version:
            return ShownState(f"settings {self.settings_version}, current", "succeeded")
        behind = f"settings {self.settings_version}, behind {newest_version}"
        return ShownState(behind, "warning", is_live=True)


def newest_version(tenant: ShownTenant, services: Sequence[TenantInService]) -> int:
    """Return the version of the newest settings. The services were read after the tenant, so one
    of them can have a newer one.
    """
    return max((tenant.settings_version, *(one.settings_version for one in services)))


def changes_soon(tenant: ShownTenant, services: Sequence[TenantInService]) -> bool:
    """Return whether a page about the tenant is worth keeping up to date."""
    newest = newest_version(tenant, services)
    states = (one.settings_state(newest) for one in services)
    behind = any(state is not None and state.is_live for state in states)
    return tenant.state.is_live or behind or any(one.state.is_live for one in services)
