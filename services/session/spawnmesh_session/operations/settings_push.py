"""Telling the peers what they keep a copy of: once with each change, and again until they have heard it."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import structlog
from google.protobuf.json_format import ParseDict
from psycopg.rows import DictRow
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.hook.v1.tenant_hook_service_pb2 import HookSettings
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.transcript.v1.tenant_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.acting import acting_for

from spawnmesh_session.operations.undo import UNDO_RETRY
from spawnmesh_session.peers import AttachmentSets, Hooks, ModelRouter, Transcripts
from spawnmesh_session.store import runs, tenants

_LONGEST_RETENTION_SECONDS = 315_360_000  # As the settings' contract has it; there are tenants from before it.


@dataclass(frozen=True, slots=True)
class SettingsPush:
    """Whoever pushes has a row of its own in the queue meanwhile: so the sweep finds what was cut off, and a deletion waits for what was not.

    Which of two pushes is heard last does not matter: every peer keeps the newest version.
    """

    database: Database
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    model_router: ModelRouter
    longest: timedelta

    async def begin(self, connection: Connection, tenant_id: str) -> str:
        """Makes sure, with the transaction, that the tenant's settings will be pushed; returns the push's name."""
        push_id = uuid4().hex
        await runs.insert_dispatch(connection, tenant_id, runs.SETTINGS, push_id, due_in=self.longest)
        return push_id

    async def run(self, tenant_id: str, push_id: str, tenant: DictRow) -> dict[str, MeshError]:
        """Tells every peer; returns those that did not take it, for which the sweep comes soon."""
        version, settings = tenant["settings_version"], tenant["settings"]
        limits = _bounded(ParseDict(settings["attachments"], AttachmentLimits()))
        of_transcripts = ParseDict(settings.get("transcripts", {}), TranscriptSettings())
        routing = ParseDict(settings.get("routing", {}), RoutingPolicy())
        with acting_for(tenant_id):
            answers = await asyncio.gather(
                self.sets.prepare_tenant(version, limits),
                self.transcripts.prepare_tenant(version, of_transcripts),
                self.hooks.prepare_tenant(version, HookSettings(mask_secrets=of_transcripts.mask_secrets)),
                self.model_router.prepare_tenant(version, routing),
                return_exceptions=True,
            )
        failed: dict[str, MeshError] = {}
        for peer, answer in zip(("attachment-blob", "transcript", "hook", "model-router"), answers, strict=True):
            if isinstance(answer, MeshError):
                failed[peer] = answer
                log = structlog.get_logger().bind(tenant=tenant_id, settings_version=version)
                log.warning("settings_not_taken", peer=peer, reason=answer.reason)
            elif isinstance(answer, BaseException):
                raise answer
        async with self.database.transaction(tenant_id) as connection:
            if failed:
                await runs.delay_dispatch(connection, tenant_id, runs.SETTINGS, push_id, UNDO_RETRY)
            else:
                await runs.delete_dispatch(connection, tenant_id, runs.SETTINGS, push_id)
        return failed

    async def repeat(self, tenant_id: str, push_id: str) -> None:
        """For the sweep: pushes what holds now, unless the tenant is gone, going or never came to be."""
        async with self.database.transaction(tenant_id) as connection:
            tenant = await tenants.enter(connection, tenant_id)
            if tenant is None or tenant["settings"] is None or tenant["deletion"] or not tenant["ready"]:
                await runs.delete_dispatch(connection, tenant_id, runs.SETTINGS, push_id)
                return
            await runs.delay_dispatch(connection, tenant_id, runs.SETTINGS, push_id, self.longest)
        await self.run(tenant_id, push_id, tenant)


def _bounded(limits: AttachmentLimits) -> AttachmentLimits:
    """With a retention that a time can be counted back by."""
    if limits.retention.seconds > _LONGEST_RETENTION_SECONDS:
        limits.retention.FromSeconds(_LONGEST_RETENTION_SECONDS)
    return limits
