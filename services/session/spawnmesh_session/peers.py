"""The calls that session makes to its peers, with the deadline of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentSet, InlineAttachment
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent, DispatchDeliveryTargetRequest
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent, BeforeSpawnEvent
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh.hook.v1.tenant_hook_service_pb2 import HookSettings
from spawnmesh.hook.v1.tenant_hook_service_pb2 import PrepareTenantRequest as PrepareHooksRequest
from spawnmesh.hook.v1.tenant_hook_service_pb2 import PurgeTenantRequest as PurgeHooksRequest
from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import TenantHookServiceStub
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.fork_pb2 import Fork
from spawnmesh.transcript.v1.tenant_pb2 import PrepareTenantRequest, PurgeTenantRequest, TranscriptSettings
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

if TYPE_CHECKING:  # The stubs' types for asyncio exist for type checkers only.
    from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceAsyncStub
    from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceAsyncStub
    from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import TenantHookServiceAsyncStub
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub

_FINALIZE_SECONDS = 660.0  # A plugin may take ten minutes; the caller's own deadline bounds it, too.
PURGE_SECONDS = 60.0
"""One call of a purge may take this long: it removes up to thousands of objects."""


@dataclass(frozen=True, slots=True)
class PurgedPart:
    """A part of a peer's purge; `row_count` is of rows that are counted as nothing else."""

    done: bool
    row_count: int
    object_count: int = 0
    transcript_count: int = 0

    @property
    def found_nothing(self) -> bool:
        """It is done, and nothing had been left."""
        return self.done and not (self.row_count or self.object_count or self.transcript_count)


@dataclass(frozen=True, slots=True)
class AttachmentSets:
    """attachment-blob, as session uses it."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "AttachmentBlobServiceAsyncStub":
        return AttachmentBlobServiceStub(self.peer.channel)

    async def prepare_tenant(self, settings_version: int, limits: blob_pb.AttachmentLimits) -> None:
        """The tenant's bucket exists afterwards and the limits hold."""
        request = blob_pb.PrepareTenantRequest(settings_version=settings_version, limits=limits)
        await self.peer.unary(self._stub.PrepareTenant, request, timeout_seconds=self.timeout_seconds)

    async def stage(
        self,
        set_id: str,
        session_id: str,
        items: list[InlineAttachment],
        uploads: list[UploadedAttachment],
        uploader_session_id: str,
    ) -> AttachmentSet:
        """All files stored, or none. Uploads are those of the session whose run asks, or of clients where that is empty."""
        request = blob_pb.StageSetRequest(
            set_id=set_id,
            session_id=session_id,
            items=items,
            uploads=uploads,
            uploader_session_id=uploader_session_id,
        )
        return (await self.peer.unary(self._stub.StageSet, request, timeout_seconds=self.timeout_seconds)).set

    async def attach(self, set_id: str) -> None:
        """STAGED -> ATTACHED."""
        request = blob_pb.AttachSetRequest(set_id=set_id)
        await self.peer.unary(self._stub.AttachSet, request, timeout_seconds=self.timeout_seconds)

    async def release(self, set_id: str) -> None:
        """Any state -> RELEASED; an unknown set too."""
        request = blob_pb.ReleaseSetRequest(set_id=set_id)
        await self.peer.unary(self._stub.ReleaseSet, request, timeout_seconds=self.timeout_seconds)

    async def purge_tenant(self, settings_version: int) -> PurgedPart:
        """A bounded part of removing all that the tenant has there which had this version last."""
        request = blob_pb.PurgeTenantRequest(settings_version=settings_version)
        part = await self.peer.unary(self._stub.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgedPart(part.done, part.deleted_row_count, object_count=part.deleted_object_count)


@dataclass(frozen=True, slots=True)
class Transcripts:
    """transcript, as session uses it."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "TranscriptServiceAsyncStub":
        return TranscriptServiceStub(self.peer.channel)

    async def prepare_tenant(self, settings_version: int, settings: TranscriptSettings) -> None:
        """These settings hold for the tenant's transcripts."""
        request = PrepareTenantRequest(settings_version=settings_version, settings=settings)
        await self.peer.unary(self._stub.PrepareTenant, request, timeout_seconds=self.timeout_seconds)

    async def create(self, session_id: str, parent_session_id: str, fork: Fork | None) -> None:
        """The session's transcript exists afterwards."""
        request = transcript_pb.CreateTranscriptRequest(
            session_id=session_id, parent_session_id=parent_session_id, fork=fork
        )
        await self.peer.unary(self._stub.CreateTranscript, request, timeout_seconds=self.timeout_seconds)

    async def delete(self, session_id: str) -> None:
        """It does not exist afterwards."""
        request = transcript_pb.DeleteTranscriptRequest(session_id=session_id)
        await self.peer.unary(self._stub.DeleteTranscript, request, timeout_seconds=self.timeout_seconds)

    async def purge_tenant(self, settings_version: int) -> PurgedPart:
        """A bounded part of removing all that the tenant has there which had this version last."""
        request = PurgeTenantRequest(settings_version=settings_version)
        part = await self.peer.unary(self._stub.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgedPart(part.done, part.deleted_row_count, transcript_count=part.deleted_transcript_count)

    async def acquire(self, session_id: str, claim: transcript_pb.WriterClaim) -> None:
        """The claim is that of the one writer; WRITER_CLAIM_LOST where a higher one is."""
        request = transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim)
        await self.peer.unary(self._stub.AcquireWriter, request, timeout_seconds=self.timeout_seconds)

    async def release(self, session_id: str, claim: transcript_pb.WriterClaim) -> None:
        """Nothing is written under the claim or a lower one any more, whether or not it was acquired; a higher one stays as it is."""
        request = transcript_pb.ReleaseWriterRequest(session_id=session_id, claim=claim)
        await self.peer.unary(self._stub.ReleaseWriter, request, timeout_seconds=self.timeout_seconds)

    async def append(
        self, session_id: str, key: str, entries: list[EntryBody], claim: transcript_pb.WriterClaim | None = None
    ) -> None:
        """Appends under the key, once; in a run's name where a claim is given."""
        request = transcript_pb.AppendEntriesRequest(
            session_id=session_id, claim=claim, idempotency_key=key, entries=entries
        )
        await self.peer.unary(self._stub.AppendEntries, request, timeout_seconds=self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class Hooks:
    """hook, as session uses it. Plugins that are asked about a spawn have as long as the spawn."""

    peer: Peer
    timeout_seconds: float
    spawn_seconds: float

    @property
    def _stub(self) -> "HookServiceAsyncStub":
        return HookServiceStub(self.peer.channel)

    @property
    def _tenants(self) -> "TenantHookServiceAsyncStub":
        return TenantHookServiceStub(self.peer.channel)

    async def prepare_tenant(self, settings_version: int, settings: HookSettings) -> None:
        """The tenant may have plugins, and these settings hold for what they are told.

        DEPENDENCY_UNAVAILABLE where secrets are to be masked and a replica answers that does not know how, as those of the release before.
        """
        request = PrepareHooksRequest(settings_version=settings_version, settings=settings)
        answer = await self.peer.unary(self._tenants.PrepareTenant, request, timeout_seconds=self.timeout_seconds)
        if settings.mask_secrets and answer.settings_version < settings_version:
            raise MeshError(
                Reason.DEPENDENCY_UNAVAILABLE, "hook has not taken the tenant's settings; they are told again"
            )

    async def purge_tenant(self, settings_version: int) -> PurgedPart:
        """A bounded part of removing all that the tenant has there which had this version last."""
        request = PurgeHooksRequest(settings_version=settings_version)
        part = await self.peer.unary(self._tenants.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgedPart(part.done, part.deleted_row_count)

    async def before_spawn(self, event: BeforeSpawnEvent) -> hook_pb.DispatchBeforeSpawnResponse:
        """May it be spawned?"""
        request = hook_pb.DispatchBeforeSpawnRequest(event=event)
        return await self.peer.unary(self._stub.DispatchBeforeSpawn, request, timeout_seconds=self.spawn_seconds)

    async def before_finalize(
        self, event: BeforeAgentFinalizeEvent, dispatch_key: str
    ) -> hook_pb.DispatchBeforeAgentFinalizeResponse:
        """May it be final?"""
        request = hook_pb.DispatchBeforeAgentFinalizeRequest(event=event, dispatch_key=dispatch_key)
        return await self.peer.unary(self._stub.DispatchBeforeAgentFinalize, request, timeout_seconds=_FINALIZE_SECONDS)

    async def delivery_target(self, event: DeliveryTargetEvent) -> str:
        """Where is it to be told? Empty where no plugin says."""
        request = DispatchDeliveryTargetRequest(event=event)
        answer = await self.peer.unary(self._stub.DispatchDeliveryTarget, request, timeout_seconds=self.timeout_seconds)
        return answer.decision.target

    async def publish(self, events: Sequence[ObservedEvent]) -> None:
        """Every observer will hear of these."""
        request = hook_pb.PublishEventsRequest(events=events)
        await self.peer.unary(self._stub.PublishEvents, request, timeout_seconds=self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class ModelRouter:
    """model-router, as session uses it."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "ModelRouterServiceAsyncStub":
        return ModelRouterServiceStub(self.peer.channel)

    async def prepare_tenant(self, settings_version: int, policy: RoutingPolicy) -> None:
        """This policy holds for the tenant's model calls."""
        request = router_pb.PrepareTenantRequest(settings_version=settings_version, policy=policy)
        await self.peer.unary(self._stub.PrepareTenant, request, timeout_seconds=self.timeout_seconds)

    async def purge_tenant(self, settings_version: int) -> PurgedPart:
        """A bounded part of removing all that the tenant has there which had this version last."""
        request = router_pb.PurgeTenantRequest(settings_version=settings_version)
        part = await self.peer.unary(self._stub.PurgeTenant, request, timeout_seconds=PURGE_SECONDS)
        return PurgedPart(part.done, part.deleted_row_count)
