"""SessionService."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceServicer
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import current_caller

from spawnmesh_session.operations.archive import Archive
from spawnmesh_session.operations.delete import Delete
from spawnmesh_session.operations.kill import Kill
from spawnmesh_session.operations.messages import Messages
from spawnmesh_session.operations.spawn import SpawnSaga
from spawnmesh_session.operations.watch import Watch, is_done
from spawnmesh_session.parse import holder_of, parse_page, parse_spawn, visible_to, wait_of
from spawnmesh_session.render import render_event, render_run, render_session
from spawnmesh_session.store import sessions

Context = grpc.aio.ServicerContext[object, object]
_DEFAULT_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SessionServicer(SessionServiceServicer):
    """Sessions and what becomes of them."""

    database: Database
    saga: SpawnSaga
    watch: Watch
    messages: Messages
    kill: Kill
    archive: Archive
    delete: Delete

    async def SpawnSession(self, request: pb.SpawnSessionRequest, context: Context) -> pb.SpawnSessionResponse:
        caller = current_caller()
        session = await self.saga.run(caller.tenant_id, parse_spawn(request, caller))
        return pb.SpawnSessionResponse(session=render_session(session))

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        caller = current_caller()
        row = await sessions.look_at(self.database, caller.tenant_id, request.session_id, visible_to=visible_to(caller))
        return pb.GetSessionResponse(session=render_session(row))

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        caller = current_caller()
        page = parse_page(request.page_size, request.page_token)
        async with self.database.transaction(caller.tenant_id) as connection:
            listed = await sessions.list_page(
                connection,
                caller.tenant_id,
                parent_session_id=request.parent_session_id,
                visible_to=visible_to(caller),
                before_id=page.last_id,
                page_size=page.size,
                include_archived=request.include_archived,
            )
        shown = [render_session(row) for row in listed.rows]
        return pb.ListSessionsResponse(sessions=shown, next_page_token=listed.next_before_id)

    async def WaitSession(self, request: pb.WaitSessionRequest, context: Context) -> pb.WaitSessionResponse:
        caller = current_caller()
        timeout = wait_of(request.timeout.ToTimedelta() if request.HasField("timeout") else None, _DEFAULT_WAIT_SECONDS)
        row = await self.watch.wait(caller.tenant_id, request.session_id, visible_to(caller), timeout)
        return pb.WaitSessionResponse(session=render_session(row), done=is_done(row))

    async def WatchSession(
        self, request: pb.WatchSessionRequest, context: Context
    ) -> AsyncIterator[pb.WatchSessionResponse]:
        caller = current_caller()
        events = self.watch.events(caller.tenant_id, request.session_id, visible_to(caller), request.after_cursor)
        async with aclosing(events):
            async for event in events:
                yield pb.WatchSessionResponse(event=render_event(event))

    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        caller = current_caller()
        run = await self.messages.send(
            caller.tenant_id, request.session_id, holder_of(caller), request.request_id, request.text
        )
        return pb.SendMessageResponse(run=render_run(run))

    async def KillSession(self, request: pb.KillSessionRequest, context: Context) -> pb.KillSessionResponse:
        caller = current_caller()
        killed = await self.kill.run(caller.tenant_id, request.session_id, holder_of(caller))
        return pb.KillSessionResponse(killed_run_count=killed)

    async def ArchiveSession(self, request: pb.ArchiveSessionRequest, context: Context) -> pb.ArchiveSessionResponse:
        session, count = await self.archive.run(current_caller().tenant_id, request.session_id)
        return pb.ArchiveSessionResponse(session=render_session(session), archived_session_count=count)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        deleted = await self.delete.run(current_caller().tenant_id, request.session_id)
        return pb.DeleteSessionResponse(
            deleted_session_count=deleted.session_count, killed_run_count=deleted.killed_run_count
        )
