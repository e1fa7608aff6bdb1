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
from spawnmesh_session.domain.spawns import is_uncertain
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.store import events, output_sets, runs, sessions


@dataclass(frozen=True, slots=True)
class FilePublisher:
    """Publishes files of held runs in three steps: begin the set, store it, and publish it.

    A crash in between leaves a set that is begun. The next call with the request_id publishes it.
    Without one, attachment-blob releases the stored files after a day, and the deletion of the
    session releases them at once.
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

        Raise REQUEST_ID_REUSED for other files than those of the first call, RUN_LEASE_LOST,
        RUN_STATE, INVALID_REQUEST if the run has published too many sets, and the refusals of
        files.
        """
        set_id = output_set_id_of(calling.run_id, request_id)
        session = await self._begin(tenant_id, calling, set_id, request_id)
        staged = await self._stage(
            tenant_id,
            calling,
            StageSetRequest(
                set_id=set_id,
                session_id=session.session_id,
                items=files,
                uploads=uploads,
                uploader_session_id=session.session_id,
                run_id=calling.run_id,
                reader_session_ids=session.ancestor_ids,
            ),
            request_id,
        )
        try:
            return await self._publish(tenant_id, calling, request_id, staged)
        except MeshError as error:
            if refused_with(error, Reason.RUN_LEASE_LOST):
                await self._release_unused(tenant_id, calling, set_id)
            raise

    async def _begin(self, tenant_id: str, calling: CallingRun, set_id: str, request_id: str) -> Session:
        """Write the row of the set, unless there is one, and return the session."""
        async with self.database.pipelined(tenant_id) as connection:
            session, run = await _lock(connection, tenant_id, calling)
            if await output_sets.find_output_set(connection, tenant_id, set_id) is None:
                require_output_room(run)
                await output_sets.begin_output_set(connection, tenant_id, run, set_id, request_id)
        return session

    async def _stage(
        self, tenant_id: str, calling: CallingRun, request: StageSetRequest, request_id: str
    ) -> AttachmentSet:
        """Store the files as a set that the runs of the session and of its ancestors may read.

        A set that is refused is forgotten, so that it does not count for the run.
        """
        try:
            return await self.sets.stage(request)
        except MeshError as error:
            if refused_with(error, Reason.ALREADY_EXISTS):
                raise MeshError(
                    Reason.REQUEST_ID_REUSED,
                    "the run has published other files with this request_id; use a new one",
                    facts={"request_id": request_id, "set_id": request.set_id},
                ) from error
            if not is_uncertain(error):
                await self._abandon(tenant_id, calling, request.set_id)
            raise

    async def _abandon(self, tenant_id: str, calling: CallingRun, set_id: str) -> None:
        async with self.database.pipelined(tenant_id) as connection:
            await _lock(connection, tenant_id, calling)
            await output_sets.abandon_output_set(connection, tenant_id, set_id)

    async def _publish(
        self, tenant_id: str, calling: CallingRun, request_id: str, staged: AttachmentSet
    ) -> OutputSet:
        """Publish the stored set with its event and the job that attaches it."""
        files = [OutputFile(file.name, file.size_bytes, file.sha256, file.mime_type) for file in staged.files]
        async with self.database.pipelined(tenant_id) as connection:
            session, run = await _lock(connection, tenant_id, calling)
            found = await output_sets.find_output_set(connection, tenant_id, staged.set_id)
            if isinstance(found, OutputSet):
                return found
            if found is None:  # Another call with the request_id was refused meanwhile.
                await output_sets.begin_output_set(connection, tenant_id, run, staged.set_id, request_id)
            now = await runs.read_time(connection)
            appended = await events.append_event(
                connection,
                tenant_id,
                session.session_id,
                EventKind.FILES_PUBLISHED,
                run_id=run.run_id,
                detail=describe_published(len(files), staged.total_bytes),
                set_id=staged.set_id,
            )
            position = await appended.fetch()
            published = await output_sets.publish_output_set(
                connection, tenant_id, staged.set_id, files, position=position or 0, now=now
            )
            await enqueue(
                connection, tenant_id, follow_up_jobs.attach_output_set(staged.set_id, session.traceparent)
            )
        return published

    async def _release_unused(self, tenant_id: str, calling: CallingRun, set_id: str) -> None:
        """Release the stored files if the run has ended, so that no repeat can publish them.

        The deletion of a session releases them itself. Never raise: they are released later in any
        case.
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
