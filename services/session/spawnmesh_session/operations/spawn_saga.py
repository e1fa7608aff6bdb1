"""The spawn saga.

It inserts the row, dispatches before_spawn if a plugin may be registered for it (gate), stores the
files and creates the transcript with the task (provision), and queues the first run (activate). If
there are files, their note and the task are appended in the last step. A step that fails undoes all
steps.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import StageSetRequest
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentSet, InlineAttachment, ReferencedFile
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh.content.v1.message_pb2 import ROLE_USER, ContentBlock, Message, Text
from spawnmesh.hook.v1.event_pb2 import BeforeSpawnEvent
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, SystemNote
from spawnmesh.transcript.v1.fork_pb2 import Fork
from spawnmesh_core.attachment_note import system_note
from spawnmesh_core.errors import HAS_ALLOW_FACT, MeshError, not_found, unavailable
from spawnmesh_core.fenced_names import NotedFile
from spawnmesh_core.ids import IdKind, derived_id, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs.store import jobs_parameter
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.server_probe import StatementLeft
from spawnmesh_runtime.telemetry import traced

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.domain.enabled_hooks import EnabledHooks, Hook
from spawnmesh_session.domain.runs import has_queue_margin, require_lease, require_run
from spawnmesh_session.domain.sessions import Session, SessionState
from spawnmesh_session.domain.spawns import (
    PluginAllowed,
    SpawnFailure,
    SpawnSpec,
    allowed_before,
    check_spawn,
    is_uncertain,
    mount_note,
    overtaken,
    spawn_error,
    spawn_limits_of,
)
from spawnmesh_session.operations import follow_up_jobs
from spawnmesh_session.operations.run_queueing import RunQueuer
from spawnmesh_session.operations.spawn_breaker import SpawnBreaker
from spawnmesh_session.operations.spawn_repeat import SpawnRepeat
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.operations.spawns_in_progress import SpawnsInProgress
from spawnmesh_session.store import sessions, spawns

# The saga uses this share of the deadline. Calls in progress end in the rest, so that the job
# that undoes the spawn finds none.
_SAGA_SHARE = 0.9

_TASK_KEY = "spawn:v1"
"""The request_id under which the task is appended, with the note about files before it."""


@dataclass(frozen=True, slots=True)
class SpawnCommand:
    """A spawn with the contents that pass through this service and are not stored in it."""

    spec: SpawnSpec
    task: str
    attachments: list[InlineAttachment]
    uploads: list[UploadedAttachment]
    references: list[ReferencedFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _BegunSpawn:
    """A spawn whose row this call has inserted."""

    depth: int
    hooks: EnabledHooks


@dataclass(frozen=True, slots=True)
class SpawnSaga:
    """Spawns sessions. Every step is idempotent and keyed by the session id."""

    database: Database
    listener: Listener
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    queuer: RunQueuer
    undo: SpawnUndo
    in_progress: SpawnsInProgress
    breaker: SpawnBreaker
    deadline: timedelta
    fork_token_count: int

    async def spawn(self, tenant_id: str, command: SpawnCommand) -> Session:
        """Spawn the session, or give the answer of the first call with the request_id.

        The spawn goes on if the caller goes away: a repeat of its request_id joins it.
        """
        repeat = SpawnRepeat(self.database, self.listener)
        refusal = self.breaker.refusal(tenant_id, command.spec)
        if refusal is not None:
            known = await repeat.find(tenant_id, command.spec)
            if known is None:
                raise refusal
            return await repeat.answer(tenant_id, known.session_id)
        while True:
            beginning = self.in_progress.start(self._spawn(tenant_id, command))
            session = await self.in_progress.wait_for(beginning)
            if session is not None:
                return session
            known = await repeat.find(tenant_id, command.spec)
            if known is not None:
                return await repeat.answer(tenant_id, known.session_id)
            # The call that had the request_id has failed since then and gave it back.
            command = replace(command, spec=replace(command.spec, session_id=new_id(IdKind.SESSION)))

    async def _spawn(self, tenant_id: str, command: SpawnCommand) -> Session | None:
        """Spawn the session. Return None if the request_id is known."""
        spec = command.spec
        try:
            begun = await self._begin(tenant_id, spec)
        # The spawn may have begun; a repeat must not wait for this call.
        except asyncio.CancelledError:
            failure = SpawnFailure.cut_off("begin")
            undoing = self.undo.undo(
                tenant_id,
                spec.session_id,
                failure,
                settled=True,
                allowed=PluginAllowed.NO,
                has_made=False,
            )
            await asyncio.shield(undoing)
            raise
        except StatementLeft:
            self._undo_later(tenant_id, spec, SpawnFailure.cut_off("begin"), PluginAllowed.NO)
            raise
        if begun is None:
            return None
        self.breaker.begun(tenant_id, spec)
        try:
            async with asyncio.timeout(self.deadline.total_seconds() * _SAGA_SHARE):
                session = await self._execute(tenant_id, command, begun)
        except TimeoutError:
            return await SpawnRepeat(self.database, self.listener).answer(tenant_id, spec.session_id)
        self.breaker.succeeded(tenant_id, spec)
        if session is not None:
            return session
        return await sessions.get_session(self.database, tenant_id, spec.session_id)

    async def _begin(self, tenant_id: str, spec: SpawnSpec) -> _BegunSpawn | None:
        """Check the limits and insert the session. Return None if the request_id is known."""
        if spec.is_plain:
            hooks = await spawns.begin_spawn(self.database, tenant_id, spec, due_in=self.deadline)
            if hooks is not None:  # Nothing could refuse it: see `domain.spawns`.
                return _BegunSpawn(depth=0, hooks=hooks)
        # The spawn is not plain, or something may refuse it. One transaction reads the facts under
        # locks, gives the first refusal that applies, and otherwise inserts the row.
        async with self.database.pipelined(tenant_id) as connection:
            context = await spawns.read_spawn_context(connection, tenant_id, spec)
            parent, limits = context.parent, spawn_limits_of(context.settings)
            waiting_count, known = context.waiting_count, context.known
            if known is None and not has_queue_margin(waiting_count, limits.max_queued_run_count):
                waiting_count, known = await spawns.recount_waiting_runs(connection, tenant_id, spec)
            if known is not None:
                return None
            if spec.parent_run_id:
                require_lease(require_run(spec.parent_run_id, context.parent_run), spec.parent_epoch)
            check_spawn(spec, parent, limits, waiting_count)
            inserted = await spawns.insert_session(
                connection,
                tenant_id,
                spec,
                parent,
                agent_version=context.agent_version,
                due_in=self.deadline,
            )
        if await inserted.fetch() is None:
            return None
        return _BegunSpawn(len(parent.ancestor_ids) + 1 if parent else 0, context.hooks)

    async def _execute(self, tenant_id: str, command: SpawnCommand, begun: _BegunSpawn) -> Session | None:
        """Run gate, provision and activate. Return None if the last commit's response was lost."""
        spec, session = command.spec, None
        if Hook.BEFORE_SPAWN in begun.hooks:
            async with self._undone_on_failure(tenant_id, spec, "gate"):
                await self._dispatch_gate(command, begun.depth)
        async with self._undone_on_failure(tenant_id, spec, "provision"):
            staged = await self._provision(tenant_id, command, begun.hooks)
        async with self._undone_on_failure(tenant_id, spec, "activate"):
            session = await self._activate(tenant_id, command, staged, begun.hooks)
        return session  # noqa: RET504 - the context manager may swallow the error.

    @asynccontextmanager
    async def _undone_on_failure(self, tenant_id: str, spec: SpawnSpec, step: str) -> AsyncIterator[None]:
        """Undo the spawn if the step fails, and raise the stored failure, as every repeat does.

        Another process may have stored it first. If it could not be stored, raise the database's
        error. Raise nothing if the session is active all the same: the step's last commit
        succeeded, and only its answer was lost.
        """
        try:
            async with traced(f"spawn {step}"):
                yield
        except BaseException as error:
            refusal = error if isinstance(error, MeshError) else translate(error)
            if refusal is None:  # Cancelled, or a defect.
                failure, settled = SpawnFailure.cut_off(step), False
            else:
                self.breaker.failed(tenant_id, spec, step, refusal)
                failure = SpawnFailure.of(step, spawn_error(step, refusal))
                settled = step == "gate" or not is_uncertain(refusal)
            allowed = allowed_before(step, refusal)
            # To remove things takes as long as an outage lets it; the caller does not wait for it.
            is_outage = step != "gate" and refusal is not None and not failure.is_final
            later = self.in_progress.undo_later if is_outage else None
            undoing = self.undo.undo(
                tenant_id,
                spec.session_id,
                failure,
                settled=settled,
                allowed=allowed,
                has_made=step != "gate",  # Before the gate's answer no service has made anything.
                later=later,
            )
            kept = await asyncio.shield(undoing)
            if not isinstance(error, Exception):
                raise
            if kept is None:
                self._undo_later(tenant_id, spec, failure, allowed)
                if refusal is None:
                    raise
                raise unavailable("PostgreSQL") from error
            if kept.delete_time is not None:
                raise not_found("session", spec.session_id) from error
            if kept.state == SessionState.SPAWN_FAILED:
                if refusal is None or kept.failure is None:
                    raise
                raise kept.failure.as_error() from error

    def _undo_later(
        self, tenant_id: str, spec: SpawnSpec, failure: SpawnFailure, allowed: PluginAllowed
    ) -> None:
        undoing = self.undo.undo_when_possible(tenant_id, spec.session_id, failure, allowed=allowed)
        self.in_progress.undo_later(undoing)

    async def _dispatch_gate(self, command: SpawnCommand, depth: int) -> None:
        spec = command.spec
        event = BeforeSpawnEvent(
            session_id=spec.session_id,
            parent_session_id=spec.parent_session_id,
            agent_id=spec.agent_id,
            attachment_count=spec.attachment_count,
            task=command.task,
            label=spec.label,
            depth=depth,
        )
        answer = await self.hooks.before_spawn(event)
        if answer.decision.HasField("deny"):
            reason = answer.decision.deny.reason
            facts = {"plugin": answer.decided_by, "plugin_reason": reason}
            if answer.has_allow:
                facts[HAS_ALLOW_FACT] = "true"
            message = f"plugin {answer.decided_by} refused the spawn: {reason}"
            raise MeshError(Reason.SPAWN_REFUSED, message, facts=facts)

    async def _pass_gate(self, tenant_id: str, session_id: str, hooks: EnabledHooks) -> None:
        """Record that plugins allowed the spawn, so that any undo publishes its failure to them.

        Without such plugins there is nothing to record.
        """
        if Hook.BEFORE_SPAWN not in hooks and Hook.SUBAGENT_ENDED not in hooks:
            return
        if not await spawns.pass_gate(self.database, tenant_id, session_id):
            raise overtaken()

    async def _provision(
        self, tenant_id: str, command: SpawnCommand, hooks: EnabledHooks
    ) -> AttachmentSet | None:
        """Stage the files, create the transcript and record the gate's answer, in parallel.

        Without files, the transcript is created with the task; a note about files precedes it.
        """
        spec = command.spec
        fork = None
        if spec.context == "FORK":
            fork = Fork(
                source_session_id=spec.fork_source,
                max_token_count=self.fork_token_count,
                up_to_seq=spec.fork_seq,
            )
        results = await asyncio.gather(
            self._stage(command),
            self.transcripts.create(
                spec.session_id,
                spec.parent_session_id,
                fork,
                _TASK_KEY,
                [] if spec.attachment_count else [_task_entry(command)],
            ),
            self._pass_gate(tenant_id, spec.session_id, hooks),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            # Prefer an uncertain error: then the job of the spawn cleans up again.
            raise max(errors, key=is_uncertain)
        return results[0] if isinstance(results[0], AttachmentSet) else None

    async def _stage(self, command: SpawnCommand) -> AttachmentSet | None:
        spec = command.spec
        if not spec.attachment_count:
            return None
        return await self.sets.stage(
            StageSetRequest(
                set_id=derived_id(IdKind.ATTACHMENT_SET, spec.session_id),
                session_id=spec.session_id,
                items=command.attachments,
                uploads=command.uploads,
                references=command.references,
                uploader_session_id=spec.spawner,
            )
        )

    async def _activate(
        self, tenant_id: str, command: SpawnCommand, staged: AttachmentSet | None, hooks: EnabledHooks
    ) -> Session:
        """If there are files, attach the set and append note and task. Then activate the session
        with its first run.
        """
        spec, receipt = command.spec, None
        if staged is not None:
            receipt = _receipt(staged, spec)
            files = [NotedFile(file.name, file.size_bytes) for file in staged.files]
            text = system_note(receipt["rel_dir"], files) + mount_note(spec.mount_path)
            note = EntryBody(system_note=SystemNote(topic="attachments", text=text))
            await self.sets.attach(staged.set_id)
            await self.transcripts.append(spec.session_id, _TASK_KEY, [note, _task_entry(command)])
        started = []
        if Hook.SESSION_START in hooks or Hook.SUBAGENT_SPAWNED in hooks:
            started.append(
                follow_up_jobs.publish_session_start(
                    spec.session_id,
                    agent_id=spec.agent_id,
                    parent_session_id=spec.parent_session_id,
                    traceparent=spec.traceparent,
                )
            )
        run, jobs = self.queuer.new_run(spec.run_timeout), jobs_parameter(*started)
        session = await spawns.activate_session(self.database, tenant_id, spec.session_id, receipt, run, jobs)
        if session is None:
            raise overtaken()
        return session


def _task_entry(command: SpawnCommand) -> EntryBody:
    return EntryBody(message=Message(role=ROLE_USER, content=[ContentBlock(text=Text(text=command.task))]))


def _receipt(staged: AttachmentSet, spec: SpawnSpec) -> dict[str, Any]:
    return {
        "set_id": staged.set_id,
        "total_bytes": staged.total_bytes,
        "files": [
            {
                "name": file.name,
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
                "mime_type": file.mime_type,
            }
            for file in staged.files
        ],
        "rel_dir": f".spawnmesh/attachments/{staged.set_id}",
        "mount_path": spec.mount_path,
        "warnings": ["MOUNT_PATH_IGNORED"] if spec.mount_path_ignored else [],
    }
