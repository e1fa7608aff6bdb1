"""The publication of files by a run: an output set that stays when the run has ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import StageSetRequest
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentSet, InlineAttachment
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh_core.errors import MeshError, error_label, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.domain.output_sets import (
    OutputFile,
    OutputSet,
    describe_published,
    output_set_id_of,
    require_output_room,
    require_publishing,
)
from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES, CallingRun, Run, run_deleted
from spawnmesh_session.domain.sessions import EventKind, Session
from spawnmesh_session.operations.session_event_jobs import publish_files_published
from spawnmesh_session.store import events, output_sets, runs, sessions


@dataclass(frozen=True, slots=True)
class FilePublisher:
    """Publishes files of held runs in three steps: begin the set, store it, and publish it.

    A crash in between leaves a set that is begun, and the next call with the request_id publishes
    it. Without one it is released with its session.
    """

    database: Database
    sets: AttachmentSets

    async def publish(
        self,
        tenant_id: str,
        calling: CallingRun,
        request_id: str,
        files: Sequence[InlineAttachment],
        uploads: Sequence[UploadedAttachment],
    ) -> OutputSet:
        """Store the files, publish their set, and return it. A repeat returns it as it is.

        Raise REQUEST_ID_REUSED for other files than those of the first call, which are published
        then. Raise RUN_LEASE_LOST, RUN_STATE, INVALID_REQUEST if the run has too many sets, and the
        refusals of files.
        """
        set_id = output_set_id_of(calling.run_id, request_id)
        session = await self._begin(tenant_id, calling, set_id, request_id)
        request = StageSetRequest(
            set_id=set_id,
            session_id=session.session_id,
            items=files,
            uploads=uploads,
            uploader_session_id=session.session_id,
            run_id=calling.run_id,
            reader_session_ids=session.ancestor_ids,
        )
        try:
            stored, is_same = await self._store(request)
            published = await self._publish(tenant_id, calling, stored)
        except MeshError as error:
            if refused_with(error, Reason.ATTACHMENT_SET_STATE):
                # The set is released with its session, and then the lease is lost.
                await self._require_lease(tenant_id, calling)
            elif refused_with(error, Reason.RUN_LEASE_LOST):
                await self._release_unused(tenant_id, calling, set_id)
            raise
        if not is_same:
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                "the run has published other files with this request_id; use a new one",
                facts={"request_id": request_id, "set_id": set_id},
            )
        return published

    async def _begin(self, tenant_id: str, calling: CallingRun, set_id: str, request_id: str) -> Session:
        """Write the row of the set, unless there is one, and return the session."""
        async with self.database.pipelined(tenant_id) as connection:
            session, run = await _lock(connection, tenant_id, calling)
            if await output_sets.find_output_set(connection, tenant_id, set_id) is None:
                require_output_room(run)
                await output_sets.begin_output_set(connection, tenant_id, run, set_id, request_id)
        return session

    async def _store(self, request: StageSetRequest) -> tuple[AttachmentSet, bool]:
        """Store the files as a set that the runs of the session and of its ancestors may read.

        Return the stored set, and whether its files are those of the request: those of an earlier
        call stay.
        """
        is_same = True
        try:
            await self.sets.stage(request)
        except MeshError as error:
            if not refused_with(error, Reason.ALREADY_EXISTS):
                raise
            is_same = False
        # A set that is only staged would be released after a day.
        return await self.sets.attach(request.set_id), is_same

    async def _require_lease(self, tenant_id: str, calling: CallingRun) -> None:
        async with self.database.pipelined(tenant_id) as connection:
            await _lock(connection, tenant_id, calling)

    async def _publish(self, tenant_id: str, calling: CallingRun, stored: AttachmentSet) -> OutputSet:
        """Publish the stored set with its event. A set that is published stays as it is."""
        files = [OutputFile(file.name, file.size_bytes, file.sha256, file.mime_type) for file in stored.files]
        async with self.database.pipelined(tenant_id) as connection:
            session, run = await _lock(connection, tenant_id, calling)
            found = await output_sets.find_output_set(connection, tenant_id, stored.set_id)
            if isinstance(found, OutputSet):
                return found
            require_output_room(run)
            now = await runs.read_time(connection)
            appended = await events.append_event(
                connection,
                tenant_id,
                session.session_id,
                EventKind.FILES_PUBLISHED,
                run_id=run.run_id,
                detail=describe_published(len(files), stored.total_bytes),
                set_id=stored.set_id,
            )
            position = await appended.fetch()
            published = await output_sets.publish_output_set(
                connection, tenant_id, stored.set_id, files, position=position or 0, now=now
            )
            await enqueue(connection, tenant_id, publish_files_published(session, published))
        return published

    async def _release_unused(self, tenant_id: str, calling: CallingRun, set_id: str) -> None:
        """Release the stored files if the run has ended, so that no repeat can publish them.

        The deletion of a session releases them itself. Never raise: they are released with the
        session in any case.
        """
        try:
            async with self.database.pipelined(tenant_id) as connection:
                run = await runs.get_run(connection, tenant_id, calling.run_id)
                found = await output_sets.find_output_set(connection, tenant_id, set_id)
            if run.state in TERMINAL_RUN_STATES and not isinstance(found, OutputSet):
                await self.sets.release(set_id)
        except Exception as error:  # noqa: BLE001
            if refused_with(error, Reason.RUN_LEASE_LOST):
                return
            structlog.get_logger().warning("unused_set_kept", set_id=set_id, error=error_label(error))


async def _lock(connection: Connection, tenant_id: str, calling: CallingRun) -> tuple[Session, Run]:
    """Lock the session and the run of the caller.

    Raise RUN_LEASE_LOST, or RUN_STATE if the run is not RUNNING.
    """
    session = await sessions.lock_session_or_deleted(connection, tenant_id, calling.session_id)
    if session is None or session.delete_time is not None:
        raise run_deleted(calling.run_id)
    run = await runs.lock_run(connection, tenant_id, calling.run_id)
    require_publishing(run, calling.epoch)
    return session, run
