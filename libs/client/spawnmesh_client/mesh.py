"""What a client can ask of a mesh. Every function answers with messages of the contracts and raises MeshError for a refusal."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from opentelemetry import trace
from spawnmesh.content.v1.thinking_pb2 import THINKING_LEVEL_UNSPECIFIED, ThinkingLevel
from spawnmesh.session.v1 import session_pb2, tenant_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_rpc
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_client.attachment_handover import hand_over
from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.patience import Patience
from spawnmesh_client.settings import ClientSettings
from spawnmesh_client.token_peer import Token, TokenPeer

if TYPE_CHECKING:  # The stubs' types for asyncio exist for type checkers only.
    from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceAsyncStub
    from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub

_SPAWN_SECONDS = 60.0
_WAIT_CALL_SECONDS = 60.0  # A longer wait is several calls, so that no proxy between takes one for dead.
_ANSWER_SECONDS = 10.0
_WATCH_CALL_SECONDS = 3600.0
_PATIENCE_SECONDS = 60.0
_ENTRIES_PAGE = 200
_LIST_PAGE = 500


class UnknownPeer(ValueError):
    """A service is asked for that `connect` was not told of."""

    def __init__(self, name: str) -> None:
        super().__init__(f"connect was not told where {name} is")
        self.name = name


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh, as the tenant of one token sees it. Safe to use from several tasks at once."""

    services: Mapping[str, TokenPeer]
    """The services that were named to `connect`, by kebab id: for RPCs that have no function here."""
    max_message_bytes: int

    async def spawn(
        self,
        task: str,
        *,
        attachments: Sequence[Path | Attachment] = (),
        agent_id: str = "",
        label: str = "",
        model: str = "",
        thinking: "ThinkingLevel.ValueType" = THINKING_LEVEL_UNSPECIFIED,
        mode: "session_pb2.SessionMode.ValueType" = session_pb2.SESSION_MODE_UNSPECIFIED,
        context: "session_pb2.ContextMode.ValueType" = session_pb2.CONTEXT_MODE_UNSPECIFIED,
        cleanup: "session_pb2.Cleanup.ValueType" = session_pb2.CLEANUP_UNSPECIFIED,
        runtime: "session_pb2.Runtime.ValueType" = session_pb2.RUNTIME_UNSPECIFIED,
        run_timeout_seconds: float | None = None,
        mount_path: str = "",
        parent_session_id: str = "",
        request_id: str | None = None,
        wait_seconds: float | None = None,
        on_progress: OnProgress = no_progress,
    ) -> session_pb2.Session:
        """A new session, durable, with its run queued; with `wait_seconds`, as `wait` finds it.

        Large files are uploaded in streams before, if `connect` was told where attachment-blob is; `on_progress` hears of these.

        The same `request_id` gives the same session again for a day; without one a fresh one is drawn. A path is sent under its last component.
        Raises OSError for a file that cannot be read.
        """
        files = await hand_over(
            self.services.get("attachment-blob"), attachments, self.max_message_bytes * 3 // 4, on_progress
        )
        request = session_rpc.SpawnSessionRequest(
            request_id=request_id or uuid.uuid4().hex,
            task=task,
            label=label,
            agent_id=agent_id,
            model=model,
            thinking=thinking,
            mode=mode,
            context=context,
            cleanup=cleanup,
            runtime=runtime,
            run_timeout=None if run_timeout_seconds is None else _duration(run_timeout_seconds),
            attachments=files.inline,
            uploads=files.uploads,
            attach_as=session_rpc.AttachAs(mount_path=mount_path) if mount_path else None,
            parent_session_id=parent_session_id,
        )
        with files.named():
            answer = await self._session.unary(self._sessions.SpawnSession, request, timeout_seconds=_SPAWN_SECONDS)
        if wait_seconds is None:
            return answer.session
        return (await self._wait(answer.session.session_id, wait_seconds)).session

    async def session(self, session_id: str) -> session_pb2.Session:
        """The session as it is now."""
        request = session_rpc.GetSessionRequest(session_id=session_id)
        return (await self._session.unary(self._sessions.GetSession, request)).session

    async def sessions(
        self, *, parent_session_id: str = "", page_size: int = 0, include_archived: bool = False
    ) -> AsyncIterator[session_pb2.Session]:
        """The tenant's sessions, or the children of one, newest first; fetched page by page as they are asked for."""
        request = session_rpc.ListSessionsRequest(
            parent_session_id=parent_session_id, page_size=page_size, include_archived=include_archived
        )
        while True:
            page = await self._session.unary(self._sessions.ListSessions, request)
            for session in page.sessions:
                yield session
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def wait(self, session_id: str, timeout_seconds: float = 30.0) -> session_rpc.WaitSessionResponse:
        """Answers when the newest run has ended or the time is over; `done` says which. Outlasts a restart of the service."""
        began = monotonic_seconds()
        await self.session(session_id)  # What is wrong with the call is told at once, and not waited for.
        return await self._wait(session_id, max(0.0, began + timeout_seconds - monotonic_seconds()))

    async def _wait(self, session_id: str, timeout_seconds: float) -> session_rpc.WaitSessionResponse:
        """As `wait`, for a session that has just been seen."""
        give_up = monotonic_seconds() + timeout_seconds
        patience = Patience(min(_PATIENCE_SECONDS, timeout_seconds))
        while True:
            left = max(0.0, give_up - monotonic_seconds())
            part = min(left, _WAIT_CALL_SECONDS)
            request = session_rpc.WaitSessionRequest(session_id=session_id, timeout=_duration(part))
            patience.calling()
            try:
                answer = await self._session.unary(
                    self._sessions.WaitSession, request, timeout_seconds=part + _ANSWER_SECONDS
                )
            except MeshError as error:
                await patience.after(error)
                continue
            patience.heard()
            if answer.done or part == left:
                return answer

    async def watch(self, session_id: str, after_cursor: int = 0) -> AsyncGenerator[session_pb2.SessionEvent, None]:
        """The session's events behind the cursor, each once and in order, then the new ones; ends after a terminal one.

        Goes on from the last event where the service restarts; gives up after a minute without an answer. A watch broken off is
        resumed with the cursor of the last event.
        """
        await self.session(session_id)
        patience = Patience(_PATIENCE_SECONDS)
        while True:
            request = session_rpc.WatchSessionRequest(session_id=session_id, after_cursor=after_cursor)
            events = self._session.stream(self._sessions.WatchSession, request, timeout_seconds=_WATCH_CALL_SECONDS)
            patience.calling()
            try:
                async with aclosing(events):
                    async for answer in events:
                        patience.heard()
                        after_cursor = answer.event.cursor
                        yield answer.event
                return
            except MeshError as error:
                await patience.after(error)

    async def send(self, session_id: str, text: str, *, request_id: str | None = None) -> session_pb2.Run:
        """The run that will read the message. The same `request_id` again changes nothing; without one a fresh one is drawn."""
        request = session_rpc.SendMessageRequest(
            session_id=session_id, request_id=request_id or uuid.uuid4().hex, text=text
        )
        return (await self._session.unary(self._sessions.SendMessage, request)).run

    async def kill(self, session_id: str) -> session_rpc.KillSessionResponse:
        """Ends the session and its descendants; how many runs that killed."""
        request = session_rpc.KillSessionRequest(session_id=session_id)
        return await self._session.unary(self._sessions.KillSession, request)

    async def archive(self, session_id: str) -> session_rpc.ArchiveSessionResponse:
        """Puts an ended session and its descendants away; how many that were."""
        request = session_rpc.ArchiveSessionRequest(session_id=session_id)
        return await self._session.unary(self._sessions.ArchiveSession, request)

    async def delete(self, session_id: str) -> session_rpc.DeleteSessionResponse:
        """Kills and deletes the session and its descendants, with transcripts and files; how many that were."""
        request = session_rpc.DeleteSessionRequest(session_id=session_id)
        return await self._session.unary(self._sessions.DeleteSession, request, timeout_seconds=_SPAWN_SECONDS)

    async def transcript(self, session_id: str, *, after_seq: int = 0) -> AsyncIterator[entry_pb2.Entry]:
        """Every entry behind `after_seq`, fetched page by page as they are asked for."""
        peer = self.service("transcript")
        stub = TranscriptServiceStub(peer.channel)
        request = transcript_rpc.ListEntriesRequest(session_id=session_id, after_seq=after_seq, page_size=_ENTRIES_PAGE)
        while True:
            page = await peer.unary(stub.ListEntries, request)
            for entry in page.entries:
                yield entry
            if len(page.entries) == 0 or page.entries[-1].seq >= page.head.seq:
                return
            request.after_seq = page.entries[-1].seq

    async def put_agent(self, agent: tenant_pb2.AgentProfile) -> tenant_pb2.AgentProfile:
        """Writes an agent of the tenant; runs claimed from now on see it."""
        request = tenant_rpc.PutAgentRequest(agent=agent)
        return (await self._session.unary(self._tenants.PutAgent, request)).agent

    async def agent(self, agent_id: str) -> tenant_pb2.AgentProfile:
        """One agent of the tenant; raises UNKNOWN_AGENT where there is none of that id."""
        request = tenant_rpc.GetAgentRequest(agent_id=agent_id)
        return (await self._session.unary(self._tenants.GetAgent, request)).agent

    async def delete_agent(self, agent_id: str) -> None:
        """Deletes an agent of the tenant, if there is one of that id; runs that are claimed from now on fail."""
        await self._session.unary(self._tenants.DeleteAgent, tenant_rpc.DeleteAgentRequest(agent_id=agent_id))

    async def agents(self) -> Sequence[tenant_pb2.AgentProfile]:
        """All of the tenant's agents, by id, fetched page by page; none where the tenant has not been created."""
        request = tenant_rpc.ListAgentsRequest(page_size=_LIST_PAGE)
        found: list[tenant_pb2.AgentProfile] = []
        while True:
            page = await self._session.unary(self._tenants.ListAgents, request)
            found += page.agents
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def create_tenant(
        self, tenant_id: str, *, display_name: str = "", settings: tenant_pb2.TenantSettings | None = None
    ) -> tenant_pb2.Tenant:
        """For operators: the tenant, made where it does not exist."""
        request = tenant_rpc.CreateTenantRequest(tenant_id=tenant_id, display_name=display_name, settings=settings)
        answer = await self._session.unary(self._tenants.CreateTenant, request, timeout_seconds=_SPAWN_SECONDS)
        return answer.tenant

    async def update_tenant(
        self,
        tenant_id: str,
        paths: Sequence[str],
        *,
        display_name: str = "",
        settings: tenant_pb2.TenantSettings | None = None,
        settings_version: int = 0,
    ) -> tuple[tenant_pb2.Tenant, Sequence[str]]:
        """For operators: changes what `paths` name, such as `settings.max_spawn_depth`; the tenant, and services that are still to be told."""
        request = tenant_rpc.UpdateTenantRequest(
            tenant_id=tenant_id,
            display_name=display_name,
            settings=settings,
            update_mask=FieldMask(paths=paths),
            settings_version=settings_version,
        )
        answer = await self._session.unary(self._tenants.UpdateTenant, request, timeout_seconds=_SPAWN_SECONDS)
        return answer.tenant, answer.stale_services

    async def tenant(self, tenant_id: str) -> tenant_pb2.Tenant:
        """For operators: one tenant, or what its deletion reports."""
        request = tenant_rpc.GetTenantRequest(tenant_id=tenant_id)
        return (await self._session.unary(self._tenants.GetTenant, request)).tenant

    async def delete_tenant(self, tenant_id: str) -> tenant_pb2.Tenant:
        """For operators: begins to delete the tenant with all that it has; `tenant` shows how far that is."""
        request = tenant_rpc.DeleteTenantRequest(tenant_id=tenant_id)
        return (await self._session.unary(self._tenants.DeleteTenant, request)).tenant

    async def tenants(self) -> Sequence[tenant_pb2.Tenant]:
        """For operators: every tenant, by id, fetched page by page."""
        request = tenant_rpc.ListTenantsRequest(page_size=_LIST_PAGE)
        found: list[tenant_pb2.Tenant] = []
        while True:
            page = await self._session.unary(self._tenants.ListTenants, request)
            found += page.tenants
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def service(self, name: str) -> TokenPeer:
        """A service by its kebab id. Raises UnknownPeer for one whose target was not given."""
        peer = self.services.get(name)
        if peer is None:
            raise UnknownPeer(name)
        return peer

    @property
    def _session(self) -> TokenPeer:
        return self.services["session"]

    @property
    def _sessions(self) -> "SessionServiceAsyncStub":
        return SessionServiceStub(self._session.channel)

    @property
    def _tenants(self) -> "TenantServiceAsyncStub":
        return TenantServiceStub(self._session.channel)


@asynccontextmanager
async def connect(
    *,
    session: str,
    transcript: str = "",
    attachment_blob: str = "",
    model_router: str = "",
    hook: str = "",
    token: Token,
    settings: ProcessSettings | None = None,
) -> AsyncIterator[Mesh]:
    """A mesh by its services' targets, each `host:port` or `dns:///host:port`; its channels are closed with the block.

    Connects at the first call. `token` may be a function, called before each call, for a program that outlives its tokens. TLS files and the
    largest message come from `settings`, or from `SPAWNMESH_…` in the environment. Calls are traced with the program's own OpenTelemetry
    tracer provider, if it has one.
    """
    targets = {
        "session": session,
        "transcript": transcript,
        "attachment-blob": attachment_blob,
        "model-router": model_router,
        "hook": hook,
    }
    chosen = settings or ClientSettings()
    process = Process("client", chosen, minter=None, verifier=None, tracer=trace.get_tracer("spawnmesh"))
    async with AsyncExitStack() as stack:
        services = {}
        for name, target in targets.items():
            if target:
                services[name] = TokenPeer(await stack.enter_async_context(open_peer(process, name, target)), token)
        yield Mesh(services, chosen.max_message_bytes)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration
