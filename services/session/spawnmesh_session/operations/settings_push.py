"""The push of a tenant's settings to the services that keep a copy."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog
from google.protobuf.json_format import ParseDict
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import Again, NewJob
from spawnmesh_runtime.impersonation import impersonate

from spawnmesh_session.clients.tenant_participants import TenantParticipants
from spawnmesh_session.domain.job_kinds import PUSH_SETTINGS
from spawnmesh_session.domain.tenants import Tenant
from spawnmesh_session.store import tenants

_AGAIN_IN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class SettingsPush:
    """Pushes settings. Every push has a job of its own while it is in progress.

    So a worker repeats a push that was interrupted, and a tenant's deletion waits for the others.
    Pushes may arrive in any order: every service keeps the newest version.
    """

    database: Database
    participants: TenantParticipants
    max_duration: timedelta

    async def begin(self, connection: Connection, tenant_id: str) -> str:
        """Guarantee a push, with the caller's transaction; return its id."""
        push_id = uuid4().hex
        push = NewJob(PUSH_SETTINGS, push_id, due_in=self.max_duration)
        await jobs.enqueue(connection, tenant_id, push)
        return push_id

    async def push(self, tenant: Tenant, push_id: str) -> dict[str, MeshError]:
        """Push to every service; return the errors by service.

        The job repeats the push for these.
        """
        tenant_id, version = tenant.tenant_id, tenant.settings_version
        settings = _participant_settings(tenant.settings)
        with impersonate(tenant_id):
            answers = await asyncio.gather(
                *(participant.prepare(version, settings) for participant in self.participants),
                return_exceptions=True,
            )
        failed: dict[str, MeshError] = {}
        for participant, answer in zip(self.participants, answers, strict=True):
            if isinstance(answer, MeshError):
                failed[participant.service] = answer
                log = structlog.get_logger().bind(tenant=tenant_id, settings_version=version)
                log.warning("settings_not_taken", peer=participant.service, reason=answer.reason)
            elif isinstance(answer, BaseException):
                raise answer
        async with self.database.transaction(tenant_id) as connection:
            if failed:
                await jobs.delay(connection, (tenant_id, PUSH_SETTINGS, push_id), _AGAIN_IN, claim_id=None)
            else:
                await jobs.delete(connection, tenant_id, PUSH_SETTINGS, push_id)
        return failed

    async def push_again(self, tenant_id: str, push_id: str) -> Again | None:
        """Push the current settings, for the job of a push. Return Again if a service failed.

        Drop the push if the tenant is incomplete, being deleted or absent.
        """
        async with self.database.pipelined(tenant_id) as connection:
            tenant = await tenants.enter_tenant(connection, tenant_id)
            if not isinstance(tenant, Tenant) or tenant.deletion or not tenant.ready:
                return None
        if failed := await self.push(tenant, push_id):
            reasons = (f"{service}: {error.reason.value}" for service, error in failed.items())
            return Again(_AGAIN_IN, reason=", ".join(reasons))
        return None


def _participant_settings(stored: Mapping[str, Any]) -> ParticipantSettings:
    """Return the stored settings that participants use. Both have the same names of fields."""
    names = ParticipantSettings.DESCRIPTOR.fields_by_name
    return ParseDict({name: stored[name] for name in names if name in stored}, ParticipantSettings())
