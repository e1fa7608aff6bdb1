"""The push of a tenant's settings to the services that keep a copy."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import structlog
from google.protobuf.json_format import ParseDict
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.hook.v1.tenant_hook_service_pb2 import HookSettings
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.transcript.v1.tenant_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.impersonation import impersonate

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.model_router import ModelRouter
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.tenants import Tenant
from spawnmesh_session.store import tenants, work_queue


@dataclass(frozen=True, slots=True)
class SettingsPush:
    """Pushes settings. Every push has its own entry in the queue while it is in progress.

    So the sweep finds a push that was interrupted, and a tenant's deletion waits for the others.
    Pushes may arrive in any order: every service keeps the newest version.
    """

    database: Database
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    model_router: ModelRouter
    max_duration: timedelta

    async def begin(self, connection: Connection, tenant_id: str) -> str:
        """Guarantee a push, with the caller's transaction; return its id."""
        push_id = uuid4().hex
        await work_queue.insert_entry(
            connection, tenant_id, work_queue.SETTINGS, push_id, due_in=self.max_duration
        )
        return push_id

    async def push(self, tenant: Tenant, push_id: str) -> dict[str, MeshError]:
        """Push to every service; return the errors by service.

        The sweep repeats the push for these.
        """
        tenant_id, version, settings = tenant.tenant_id, tenant.settings_version, tenant.settings
        limits = ParseDict(settings["attachments"], AttachmentLimits())
        transcript_settings = ParseDict(settings.get("transcripts", {}), TranscriptSettings())
        hook_settings = HookSettings(mask_secrets=transcript_settings.mask_secrets)
        routing = ParseDict(settings.get("routing", {}), RoutingPolicy())
        with impersonate(tenant_id):
            answers = await asyncio.gather(
                self.sets.prepare_tenant(version, limits),
                self.transcripts.prepare_tenant(version, transcript_settings),
                self.hooks.prepare_tenant(version, hook_settings),
                self.model_router.prepare_tenant(version, routing),
                return_exceptions=True,
            )
        failed: dict[str, MeshError] = {}
        services = ("attachment-blob", "transcript", "hook", "model-router")
        for service, answer in zip(services, answers, strict=True):
            if isinstance(answer, MeshError):
                failed[service] = answer
                log = structlog.get_logger().bind(tenant=tenant_id, settings_version=version)
                log.warning("settings_not_taken", peer=service, reason=answer.reason)
            elif isinstance(answer, BaseException):
                raise answer
        async with self.database.transaction(tenant_id) as connection:
            if failed:
                await work_queue.delay_entry(
                    connection, tenant_id, work_queue.SETTINGS, push_id, work_queue.RETRY_IN
                )
            else:
                await work_queue.delete_entry(connection, tenant_id, work_queue.SETTINGS, push_id)
        return failed

    async def push_again(self, tenant_id: str, push_id: str) -> None:
        """Push the current settings.

        Drop the push if the tenant is incomplete, being deleted or absent.
        """
        async with self.database.pipelined(tenant_id) as connection:
            tenant = await tenants.enter_tenant(connection, tenant_id)
            if not isinstance(tenant, Tenant) or tenant.deletion or not tenant.ready:
                await work_queue.delete_entry(connection, tenant_id, work_queue.SETTINGS, push_id)
                return
            await work_queue.delay_entry(
                connection, tenant_id, work_queue.SETTINGS, push_id, self.max_duration
            )
        await self.push(tenant, push_id)
