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
from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES, CallingRun, run_deleted
from spawnmesh_session.domain.sessions import EventKind, Session
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.store import events, output_sets, runs, sessions


@dataclass(frozen=True, slots=True)
class FilePublisher:
    """Publishes files of held runs.

    The set is staged before its row is written. A crash in between leaves a set that no row names,
    and that attachment-blob releases by itself after a day; a repeat of the call publishes it.
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
        async with self.database.pipelined(tenant_id) as connection:
            run = await runs.get_run(connection, tenant_id, calling.run_id)
            require_publishing(run, calling.epoch)
            if await output_sets.find_output_set(connection, tenant_id, set_id) is None:
                require_output_room(run)
            session = await sessions.read_session(connection, tenant_id, run.session_id)
        staged = await self._stage(set_id, session, calling, request_id, files, uploads)
        try:
            return await self._publish(tenant_id, calling, request_id, staged)
        except MeshError as error:
            if refused_with(error, Reason.RUN_LEASE_LOST, Reason.INVALID_REQUEST):
                await self._release_unused(tenant_id, calling, set_id)
            raise

    async def _stage(
        self,
        set_id: str,
        session: Session,
        calling: CallingRun,
        request_id: str,
        files: Sequence[InlineAttachment],
        uploads: Sequence[UploadedAttachment],
    ) -> AttachmentSet:
        """Store the files as a set that the runs of the session and of its ancestors may read."""
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
            return await self.sets.stage(request)
        except MeshError as error:
            if not refused_with(error, Reason.ALREADY_EXISTS):
                raise
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                "the run has published other files with this request_id; use a new one",
                facts={"request_id": request_id, "set_id": set_id},
            ) from error

    async def _publish(
        self, tenant_id: str, calling: CallingRun, request_id: str, staged: AttachmentSet
    ) -> OutputSet:
        """Write the row of the staged set with its event and the job that attaches it."""
        published = tuple(
            OutputFile(file.name, file.size_bytes, file.sha256, file.mime_type) for file in staged.files
        )
        async with self.database.pipelined(tenant_id) as connection:
            session = await _lock_session(connection, tenant_id, calling)
            run = await runs.lock_run(connection, tenant_id, calling.run_id)
            require_publishing(run, calling.epoch)
            found = await output_sets.find_output_set(connection, tenant_id, staged.set_id)
            if found is not None:
                return found
            require_output_room(run)
            now = await runs.read_time(connection)
            inserted = await output_sets.insert_output_set(
                connection, tenant_id, run, staged.set_id, request_id, published, now
            )
            if inserted is None:
                raise RuntimeError("another transaction published a set of a locked run")
            await events.append_event(
                connection,
                tenant_id,
                session.session_id,
                EventKind.FILES_PUBLISHED,
                run_id=run.run_id,
                detail=describe_published(len(published), inserted.total_bytes),
                set_id=staged.set_id,
            )
            await enqueue(
                connection, tenant_id, follow_up_jobs.attach_output_set(staged.set_id, session.traceparent)
            )
        return inserted

    async def _release_unused(self, tenant_id: str, calling: CallingRun, set_id: str) -> None:
        """Release the set if no repeat can publish it any more. Never raise: it expires anyway.

        While the run is live, its next runner may repeat the call.
        """
        try:
            async with self.database.pipelined(tenant_id) as connection:
                if await output_sets.find_output_set(connection, tenant_id, set_id) is not None:
                    return
                try:
                    run = await runs.get_run(connection, tenant_id, calling.run_id)
                except MeshError as error:
                    if not refused_with(error, Reason.RUN_LEASE_LOST):
                        raise
                else:
                    if run.state not in TERMINAL_RUN_STATES:
                        return
            await self.sets.release(set_id)
        except Exception as error:  # noqa: BLE001
            structlog.get_logger().warning("unused_set_kept", set_id=set_id, error=error_label(error))


async def _lock_session(connection: Connection, tenant_id: str, calling: CallingRun) -> Session:
    """Lock the session of the calling run. Raise RUN_LEASE_LOST if it was deleted."""
    session = await sessions.lock_session_or_deleted(connection, tenant_id, calling.session_id)
    if session is None or session.delete_time is not None:
        raise run_deleted(calling.run_id)
    return session
