"""A mesh in the messages of its contracts, for programs that need every field of them.

Methods return messages and raise MeshError for a refusal. `spawnmesh_client.connect` gives the mesh
whose methods return views.
"""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.longrunning.operations_pb2 import Operation as OperationMessage
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.attachment_blob.v1.attachment_pb2 import ReferencedFile
from spawnmesh.content.v1.thinking_pb2 import THINKING_LEVEL_UNSPECIFIED, ThinkingLevel
from spawnmesh.session.v1 import budget_pb2, session_pb2, tenant_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_rpc
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError

from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.attachments import Sendable
from spawnmesh_client.connections import open_service
from spawnmesh_client.discovery import parse_url
from spawnmesh_client.pages import pages_of
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.settings import ClientSettings, ConnectionSettings
from spawnmesh_client.spawn_attachments import prepare_attachments
from spawnmesh_client.token_peer import Token, TokenPeer, UnknownPeer
from spawnmesh_client.view_of import duration_of
from spawnmesh_client.waits import OnSession, wait_session

if TYPE_CHECKING:  # The stubs' types for asyncio exist for type checkers only.
    from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceAsyncStub
    from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub

_SPAWN_SECONDS = 60.0
_WATCH_CALL_SECONDS = 3600.0
_RETRY_SECONDS = 60.0
_ENTRIES_PAGE = 200
_LIST_PAGE = 500


@dataclass(frozen=True, slots=True)
class WireMesh:
    """A mesh as the tenant of one token sees it. Several tasks may use it at once."""

    services: Mapping[str, TokenPeer]
    """The services that were passed to `connect`, by kebab id, for RPCs that have no function
    here.
    """
    max_message_bytes: int

    async def spawn(
        self,
        task: str,
        *,
        attachments: Sequence[Sendable] = (),
        references: Sequence[ReferencedFile] = (),
        agent_id: str = "",
        label: str = "",
        metadata: Mapping[str, str] | None = None,
        model: str = "",
        thinking: "ThinkingLevel.ValueType" = THINKING_LEVEL_UNSPECIFIED,
        mode: "session_pb2.SessionMode.ValueType" = session_pb2.SESSION_MODE_UNSPECIFIED,
        context: "session_pb2.ContextMode.ValueType" = session_pb2.CONTEXT_MODE_UNSPECIFIED,
        cleanup: "session_pb2.Cleanup.ValueType" = session_pb2.CLEANUP_UNSPECIFIED,
        runtime: "session_pb2.Runtime.ValueType" = session_pb2.RUNTIME_UNSPECIFIED,
        run_timeout_seconds: float | None = None,
        mount_path: str = "",
        parent_session_id: str = "",
        fork: session_pb2.ForkPoint | None = None,
        budget: budget_pb2.Budget | None = None,
        request_id: str | None = None,
        wait_seconds: float | None = None,
        on_progress: OnProgress = no_progress,
    ) -> session_pb2.Session:
        """Spawn a session and queue its run.

        It is durable on return; with `wait_seconds`, wait as `wait` does.

        Large files are uploaded before the spawn, if `connect` knows attachment-blob; `on_progress`
        reports these uploads. For a day, the same `request_id` returns the same session; without
        one a new id is drawn. A path is sent under its last component. Raises OSError for a file
        that cannot be read.
        """
        room_bytes = self.max_message_bytes * 9 // 10
        blobs = self.services.get("attachment-blob")
        files = await prepare_attachments(blobs, attachments, room_bytes, on_progress, references)
        request = session_rpc.SpawnSessionRequest(
            request_id=request_id or uuid.uuid4().hex,
            task=task,
            label=label,
            metadata=metadata,
            agent_id=agent_id,
            model=model,
            thinking=thinking,
            mode=mode,
            context=context,
            cleanup=cleanup,
            runtime=runtime,
            run_timeout=None if run_timeout_seconds is None else duration_of(run_timeout_seconds),
            attachments=files.inline,
            uploads=files.uploads,
            references=files.references,
            attach_as=session_rpc.AttachAs(mount_path=mount_path) if mount_path else None,
            parent_session_id=parent_session_id,
            fork=fork,
            budget=budget,
        )
        with files.named():
            answer = await self._session.unary(
                self._sessions.SpawnSession, request, timeout_seconds=_SPAWN_SECONDS
            )
        if wait_seconds is None:
            return answer.session
        return (await wait_session(self._session, answer.session.session_id, wait_seconds)).session

    async def session(self, session_id: str) -> session_pb2.Session:
        """Return the session as it is now."""
        request = session_rpc.GetSessionRequest(session_id=session_id)
        return (await self._session.unary(self._sessions.GetSession, request)).session

    async def sessions(
        self,
        *,
        filter: str = "",
        order_by: str = "",
        view: "session_pb2.SessionView.ValueType" = session_pb2.SESSION_VIEW_UNSPECIFIED,
        page_size: int = 0,
        include_archived: bool = False,
    ) -> AsyncIterator[session_pb2.Session]:
        """Yield the tenant's sessions that the filter accepts, such as `state = ACTIVE`, newest
        first unless `order_by` says otherwise.

        Pages are fetched as needed.
        """
        request = session_rpc.ListSessionsRequest(
            filter=filter,
            order_by=order_by,
            view=view,
            page_size=page_size,
            include_archived=include_archived,
        )
        while True:
            page = await self._session.unary(self._sessions.ListSessions, request)
            for session in page.sessions:
                yield session
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def wait(
        self, session_id: str, timeout_seconds: float = 30.0, on_session: OnSession | None = None
    ) -> session_rpc.WaitSessionResponse:
        """Wait until the newest run has ended or the time is over; `done` says which.

        The wait continues after a restart of the service. `on_session` is called with the session
        every few seconds and at the end.
        """
        began = monotonic_seconds()
        await self.session(session_id)  # This reports a wrong call at once, without retries.
        left = max(0.0, began + timeout_seconds - monotonic_seconds())
        return await wait_session(self._session, session_id, left, on_session)

    async def watch(
        self, request: session_rpc.WatchSessionRequest
    ) -> AsyncGenerator[session_rpc.WatchSessionResponse, None]:
        """Yield what WatchSession streams, each message once and in order, until it ends.

        Resume after a restart of the service; give up after a minute without an answer. To resume a
        watch, pass the cursor of its last message.
        """
        await self.session(request.session_id)
        retry, left = RetryPolicy(_RETRY_SECONDS), session_rpc.WatchSessionRequest()
        left.CopyFrom(request)
        while True:
            messages = self._session.stream(
                self._sessions.WatchSession, left, timeout_seconds=_WATCH_CALL_SECONDS
            )
            retry.begin_attempt()
            try:
                async with aclosing(messages):
                    async for message in messages:
                        retry.record_answer()
                        left.cursor, left.after_event, left.after_seq = message.cursor, 0, 0
                        yield message
                return
            except MeshError as error:
                await retry.wait_before_next(error)

    async def send(self, session_id: str, text: str, *, request_id: str | None = None) -> session_pb2.Run:
        """Send a message and return the run that will read it.

        The same `request_id` again changes nothing; without one a new id is drawn.
        """
        request = session_rpc.SendMessageRequest(
            session_id=session_id, request_id=request_id or uuid.uuid4().hex, text=text
        )
        return (await self._session.unary(self._sessions.SendMessage, request)).run

    async def interrupt(
        self, session_id: str, text: str = "", *, run_id: str = "", request_id: str | None = None
    ) -> session_rpc.InterruptRunResponse:
        """End the live run at its next safe point, or the run that is named.

        With a text, the run goes on with that message instead. `request_id` is as for `send`, and
        not used without a text.
        """
        request = session_rpc.InterruptRunRequest(
            session_id=session_id,
            run_id=run_id,
            request_id=(request_id or uuid.uuid4().hex) if text else "",
            text=text,
        )
        return await self._session.unary(self._sessions.InterruptRun, request)

    async def kill(self, session_id: str) -> session_rpc.KillSessionResponse:
        """End the session and its descendants; return the number of killed runs."""
        request = session_rpc.KillSessionRequest(session_id=session_id)
        return await self._session.unary(self._sessions.KillSession, request)

    async def archive(self, session_id: str) -> session_rpc.ArchiveSessionResponse:
        """Archive an ended session and its descendants; return their number."""
        request = session_rpc.ArchiveSessionRequest(session_id=session_id)
        return await self._session.unary(self._sessions.ArchiveSession, request)

    async def delete(self, session_id: str) -> session_rpc.DeleteSessionResponse:
        """Kill and delete the session and its descendants, with transcripts and files; return
        their number.
        """
        request = session_rpc.DeleteSessionRequest(session_id=session_id)
        return await self._session.unary(
            self._sessions.DeleteSession, request, timeout_seconds=_SPAWN_SECONDS
        )

    async def transcript(self, session_id: str, *, after_seq: int = 0) -> AsyncIterator[entry_pb2.Entry]:
        """Yield every entry after `after_seq`. Pages are fetched as needed."""
        peer = self.service("transcript")
        stub = TranscriptServiceStub(peer.channel)
        request = transcript_rpc.ListEntriesRequest(
            session_id=session_id, after_seq=after_seq, page_size=_ENTRIES_PAGE
        )
        async for page in pages_of(peer, stub.ListEntries, request):
            for entry in page.entries:
                yield entry

    async def put_agent(self, agent: tenant_pb2.AgentProfile) -> tenant_pb2.AgentProfile:
        """Create an agent of the tenant, or replace all of it."""
        return await self.update_agent(agent, [EVERY_FIELD], allow_missing=True)

    async def update_agent(
        self, agent: tenant_pb2.AgentProfile, paths: Sequence[str], *, allow_missing: bool = False
    ) -> tenant_pb2.AgentProfile:
        """Change the fields in `paths` of an agent; without paths, the fields that are set."""
        request = tenant_rpc.UpdateAgentRequest(
            agent=agent, update_mask=FieldMask(paths=paths), allow_missing=allow_missing
        )
        return (await self._session.unary(self._tenants.UpdateAgent, request)).agent

    async def agent(self, agent_id: str) -> tenant_pb2.AgentProfile:
        """Return one agent of the tenant. Raises UNKNOWN_AGENT."""
        request = tenant_rpc.GetAgentRequest(agent_id=agent_id)
        return (await self._session.unary(self._tenants.GetAgent, request)).agent

    async def delete_agent(self, agent_id: str, *, etag: str = "") -> None:
        """Delete an agent of the tenant, if it exists and has the etag. Runs that are claimed from
        now on fail.
        """
        request = tenant_rpc.DeleteAgentRequest(agent_id=agent_id, etag=etag)
        await self._session.unary(self._tenants.DeleteAgent, request)

    async def agents(self) -> Sequence[tenant_pb2.AgentProfile]:
        """Return all of the tenant's agents, by id; none if the tenant does not exist."""
        request = tenant_rpc.ListAgentsRequest(page_size=_LIST_PAGE)
        pages = pages_of(self._session, self._tenants.ListAgents, request)
        return [agent async for page in pages for agent in page.agents]

    async def create_tenant(
        self, tenant_id: str, *, display_name: str = "", settings: tenant_pb2.TenantSettings | None = None
    ) -> tenant_pb2.Tenant:
        """Create the tenant if it does not exist. For operators."""
        request = tenant_rpc.CreateTenantRequest(
            tenant_id=tenant_id, display_name=display_name, settings=settings
        )
        answer = await self._session.unary(
            self._tenants.CreateTenant, request, timeout_seconds=_SPAWN_SECONDS
        )
        return answer.tenant

    async def update_tenant(
        self,
        tenant_id: str,
        paths: Sequence[str],
        *,
        display_name: str = "",
        settings: tenant_pb2.TenantSettings | None = None,
        etag: str = "",
    ) -> tuple[tenant_pb2.Tenant, Sequence[str]]:
        """Change the fields in `paths`, such as `settings.max_spawn_depth`. For operators.

        Return the tenant, and the services that do not know the change yet.
        """
        request = tenant_rpc.UpdateTenantRequest(
            tenant=tenant_pb2.Tenant(
                tenant_id=tenant_id, display_name=display_name, settings=settings, etag=etag
            ),
            update_mask=FieldMask(paths=paths),
        )
        answer = await self._session.unary(
            self._tenants.UpdateTenant, request, timeout_seconds=_SPAWN_SECONDS
        )
        return answer.tenant, answer.stale_services

    async def tenant(self, tenant_id: str) -> tenant_pb2.Tenant:
        """Return one tenant, or the progress of its deletion. For operators."""
        request = tenant_rpc.GetTenantRequest(tenant_id=tenant_id)
        return (await self._session.unary(self._tenants.GetTenant, request)).tenant

    async def tenant_status(self, tenant_id: str) -> Sequence[tenant_rpc.ServiceTenantStatus]:
        """Return what each service knows and stores of the tenant. For operators."""
        request = tenant_rpc.GetTenantStatusRequest(tenant_id=tenant_id)
        return (await self._session.unary(self._tenants.GetTenantStatus, request)).services

    async def delete_tenant(self, request: tenant_rpc.DeleteTenantRequest) -> OperationMessage:
        """Start the operation that deletes a tenant with all its data. For operators."""
        return await self._session.unary(self._tenants.DeleteTenant, request)

    async def tenants(self) -> Sequence[tenant_pb2.Tenant]:
        """Return every tenant, by id. For operators."""
        request = tenant_rpc.ListTenantsRequest(page_size=_LIST_PAGE)
        pages = pages_of(self._session, self._tenants.ListTenants, request)
        return [tenant async for page in pages for tenant in page.tenants]

    def service(self, name: str) -> TokenPeer:
        """Return a service by its kebab id. Raises UnknownPeer if its target is not known."""
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
async def connect_wire(
    *,
    url: str = "",
    session: str = "",
    transcript: str = "",
    attachment_blob: str = "",
    model_router: str = "",
    hook: str = "",
    token: Token,
    settings: ConnectionSettings | None = None,
) -> AsyncIterator[WireMesh]:
    """Connect to a mesh by the URL of its gateway, as for `connect`, or by its services' targets,
    each `host:port` or `dns:///host:port`. The gateway serves each service without a target.

    The first call opens the connection, and the end of the block closes it. `token` may be a
    function that is called before each call, for a program that outlives its tokens. TLS files and
    the message limit come from `settings`, or from `SPAWNMESH_…` in the environment. Calls are
    traced with the program's own OpenTelemetry tracer provider, if it has one. Raises TlsUnusable
    for TLS files that cannot be used, and ValueError for a malformed URL or variable.
    """
    targets = {
        "session": session,
        "transcript": transcript,
        "attachment-blob": attachment_blob,
        "model-router": model_router,
        "hook": hook,
    }
    if not session and not url:
        raise ValueError("name the URL of the gateway or the target of session")
    gateway, scheme = parse_url(url) if url else ("", "")
    chosen = settings or ClientSettings.from_environment()
    async with AsyncExitStack() as stack:
        services = {}
        for name, own in targets.items():
            if target := own or gateway:
                opened = open_service(name, target, chosen, scheme="" if own else scheme)
                connection = await stack.enter_async_context(opened)
                services[name] = TokenPeer(connection, token)
        yield WireMesh(services, chosen.max_message_bytes)
