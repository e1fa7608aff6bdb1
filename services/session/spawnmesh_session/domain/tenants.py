"""Tenants: their settings, as this service reads them, and the steps of their deletion."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.etags import etag_differs, etag_of_values

DEFAULT_ARCHIVE_AFTER = timedelta(days=30)
_EXECUTE, _FOLLOW = "execute", "follow"


class DeletionStep(StrEnum):
    """KILL live sessions -> SETTLE work in progress -> remove own ROWS -> purge PEERS -> DONE."""

    KILL = "KILL"
    SETTLE = "SETTLE"
    ROWS = "ROWS"
    PEERS = "PEERS"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """The progress and the report of a tenant's deletion."""

    tenant_id: str
    step: DeletionStep
    request_time: datetime
    end_time: datetime | None
    killed_run_count: int
    deleted_session_count: int
    deleted_transcript_count: int
    deleted_object_count: int
    stalled_by: str
    settings_version: int


@dataclass(frozen=True, slots=True)
class DeletionPosition:
    """The deletion of an operation, which either executes it or only follows it.

    The time of its request tells it from a later deletion of a tenant with the same id.
    """

    request_time: datetime
    executes: bool

    @classmethod
    def parse(cls, text: str) -> "DeletionPosition":
        """Read the position of an operation."""
        word, time = text.split(" ", 1)
        return cls(datetime.fromisoformat(time), word == _EXECUTE)

    def __str__(self) -> str:
        return f"{_EXECUTE if self.executes else _FOLLOW} {self.request_time.isoformat()}"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its deletion, if one has begun."""

    tenant_id: str
    display_name: str
    settings: dict[str, Any]
    settings_version: int
    ready: bool
    create_time: datetime
    deletion: TenantDeletion | None

    @property
    def etag(self) -> str:
        """Return a hash of the name, the settings and their version."""
        return etag_of_values(self.tenant_id, self.display_name, self.settings, self.settings_version)


@dataclass(frozen=True, slots=True)
class DeletedTenant:
    """The report of a deletion after the tenant's own row is gone."""

    tenant_id: str
    deletion: TenantDeletion


def require_tenant(tenant_id: str, found: Tenant | DeletedTenant | None) -> Tenant:
    """Return the tenant, ready or not, being deleted or not.

    Raise UNKNOWN_TENANT if there is none.
    """
    if not isinstance(found, Tenant):
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"tenant {tenant_id} has not been created; "
            f"an operator creates it with `spawnmesh tenant create {tenant_id}`",
            facts={"tenant_id": tenant_id},
        )
    return found


def require_ready(tenant_id: str, found: Tenant | DeletedTenant | None) -> Tenant:
    """Return the tenant. Raise UNKNOWN_TENANT if it is incomplete, being deleted or absent."""
    tenant = require_tenant(tenant_id, found)
    if tenant.deletion is not None:
        raise MeshError(
            Reason.UNKNOWN_TENANT, f"tenant {tenant_id} is being deleted", facts={"tenant_id": tenant_id}
        )
    if not tenant.ready:
        raise MeshError(
            Reason.UNKNOWN_TENANT,
            f"the creation of tenant {tenant_id} is not complete; repeat CreateTenant",
            facts={"tenant_id": tenant_id},
        )
    return tenant


def check_etag(etag: str, current: Tenant) -> None:
    """Raise ETAG_DIFFERS unless the etag is empty or that of the tenant."""
    if etag not in ("", current.etag):
        raise etag_differs(
            "tenant.etag", "tenant", current.tenant_id, etag=current.etag, version=current.settings_version
        )


def masks_secrets(settings: Mapping[str, object]) -> bool:
    """Return whether a tenant's stored settings demand that secrets are masked."""
    transcripts = settings.get("transcripts")
    return isinstance(transcripts, dict) and bool(transcripts.get("mask_secrets"))


def retains_kept_sessions(settings: Mapping[str, object]) -> bool:
    """Return whether the tenant retains the files of sessions with cleanup KEEP."""
    return bool(settings.get("retain_on_session_keep", False))


@dataclass(frozen=True, slots=True)
class Retention:
    """The ages at which ended sessions are archived and deleted; None keeps them for ever."""

    archive_after: timedelta = DEFAULT_ARCHIVE_AFTER
    delete_after: timedelta | None = None


def retention_of(settings: Mapping[str, object]) -> Retention:
    """Read the retention from a tenant's stored settings. An absent age, or 0, has its default."""

    def duration(name: str) -> timedelta | None:
        value = settings.get(name)  # JSON of a duration: seconds, then `s`.
        return timedelta(seconds=float(value[:-1])) or None if isinstance(value, str) else None

    return Retention(duration("archive_after") or DEFAULT_ARCHIVE_AFTER, duration("delete_after"))
