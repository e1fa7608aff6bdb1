"""The spawn saga: row, gate, files and transcript side by side, task, queue; or all of it undone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.rows import DictRow
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentSet, InlineAttachment
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh.content.v1.message_pb2 import ROLE_USER, ContentBlock, Message, Text
from spawnmesh.hook.v1.event_pb2 import BeforeSpawnEvent
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, SystemNote
from spawnmesh.transcript.v1.fork_pb2 import Fork
from spawnmesh_core.attachment_note import NotedFile, system_note
from spawnmesh_core.errors import MeshError, not_found, unavailable
from spawnmesh_core.ids import IdKind, derived_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs import described
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.interceptors.deadline import remaining_seconds
from spawnmesh_runtime.telemetry import traced

from spawnmesh_session.domain import (
    SessionState,
    Spawn,
    SpawnFailure,
    check_spawn,
    limits_of,
    mount_note,
)
from spawnmesh_session.jobs import tell_started
from spawnmesh_session.operations.claim import require_held
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.operations.undo import SpawnUndo
from spawnmesh_session.peers import AttachmentSets, Hooks, Transcripts
from spawnmesh_session.store import runs, sessions, spawns

_WAIT_FOR_TWIN_SECONDS = 30.0
_ANSWER_SECONDS = 0.2  # Kept back of a repeat's time, to be heard before its deadline.
_LOOK_AGAIN_SECONDS = 0.5
_SAGA_SHARE = 0.9  # Of the deadline. In the rest its calls end, and the reconciler finds nothing still being made.
_CUT_OFF = "the spawn was cut off and undone; spawn again with a new request_id"
_SPAWNS_AT_ONCE = 100  # More than can begin at once: so far from its limit the queue need not be locked to count it.


@dataclass(frozen=True, slots=True)
class Order:
    """A spawn with the contents that pass through it and are kept nowhere in this service."""

    spawn: Spawn
    task: str
    attachments: list[InlineAttachment]
    uploads: list[UploadedAttachment]


@dataclass(frozen=True, slots=True)
class SpawnSaga:
    """Every step is idempotent and keyed by the session's id, so that the reconciler can undo what a crash left."""

    database: Database
    listener: Listener
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    endings: Endings
    undo: SpawnUndo
    deadline: timedelta
    fork_token_count: int

    async def run(self, tenant_id: str, order: Order) -> DictRow:
        """Spawns, or answers what the first call with the request_id was answered."""
        try:
            depth = await self._begin(tenant_id, order.spawn)
        except asyncio.CancelledError:  # It may have begun all the same; a repeat is not to wait for somebody at work.
            failure = SpawnFailure.at("begin", _CUT_OFF)
            await asyncio.shield(self.undo.run(tenant_id, order.spawn.session_id, failure, settled=True))
            raise
        if depth is None:
            return await self._answer_again(tenant_id, order.spawn)
        try:
            async with asyncio.timeout(self.deadline.total_seconds() * _SAGA_SHARE):
                spawned = await self._carry_out(tenant_id, order, depth)
        except TimeoutError:
            return await self._answer_again(tenant_id, order.spawn)
        if spawned is not None:
            return spawned
        return await sessions.look_at(self.database, tenant_id, order.spawn.session_id)

    async def _begin(self, tenant_id: str, spawn: Spawn) -> int | None:
        """Checks the limits and inserts the session; returns its depth, or None where another call has the request_id."""
        if _is_plain(spawn) and await spawns.begin(
            self.database, tenant_id, spawn, due_in=self.deadline, margin=_SPAWNS_AT_ONCE
        ):
            return 0
        async with self.database.pipelined(tenant_id) as connection:
            seen = await spawns.look(connection, tenant_id, spawn)
            parent, limits = seen.parent, limits_of(seen.settings)
            waiting, known = seen.waiting_count, seen.known
            if known is None and waiting + _SPAWNS_AT_ONCE > limits.max_queued_run_count:
                waiting, known = await spawns.look_again(connection, tenant_id, spawn)
            if known is not None:
                return None
            if spawn.parent_run_id:
                require_held(runs.existing(spawn.parent_run_id, seen.parent_run), spawn.parent_epoch)
            check_spawn(spawn, parent, limits, waiting)
            ancestor_ids = (*parent.ancestor_ids, parent.session_id) if parent else ()
            inserted = await sessions.insert(connection, tenant_id, spawn, ancestor_ids, due_in=self.deadline)
        return len(ancestor_ids) if await inserted.fetchone() else None

    async def _carry_out(self, tenant_id: str, order: Order, depth: int) -> DictRow | None:
        """The session; None where it is spawned, and the answer of the commit that made it so was lost."""
        spawn, spawned = order.spawn, None
        async with self._undone_on_failure(tenant_id, spawn, "gate"):
            await self._ask_gate(tenant_id, order, depth)
        async with self._undone_on_failure(tenant_id, spawn, "provision"):
            staged = await self._provision(tenant_id, order)
        async with self._undone_on_failure(tenant_id, spawn, "enrol"):
            spawned = await self._enrol(tenant_id, order, staged)
        return spawned  # noqa: RET504 - the block may be left without one, which neither linter sees.

    @asynccontextmanager
    async def _undone_on_failure(self, tenant_id: str, spawn: Spawn, step: str) -> AsyncIterator[None]:
        """Undoes the spawn when the step fails, and raises what every repeat will hear too, by whomever it was undone first. Where that could
        not be written down it is no answer, and the caller hears that the database is away.

        Raises nothing where the session is spawned all the same: the step's last commit was done, and only its answer was lost.
        """
        try:
            async with traced(f"spawn {step}"):
                yield
        except BaseException as error:
            refusal = error if isinstance(error, MeshError) else translate(error)
            if refusal is None:  # Cancelled, or a defect.
                failure, settled = SpawnFailure.at(step, _CUT_OFF), False
            else:  # Before the gate has answered no peer has made anything.
                failure = SpawnFailure.of(step, _as_answer(step, refusal))
                settled = step == "gate" or not _leaves_doubt(refusal)
            undoing = self.undo.run(tenant_id, spawn.session_id, failure, settled=settled, passed_gate=step != "gate")
            kept = await asyncio.shield(undoing)
            if not isinstance(error, Exception):
                raise
            if kept is None:
                if refusal is None:
                    raise
                raise unavailable("PostgreSQL") from error
            if kept["delete_time"] is not None:
                raise not_found("session", spawn.session_id) from error
            if kept["state"] == SessionState.SPAWN_FAILED:
                if refusal is None:
                    raise
                raise SpawnFailure(**kept["failure"]).as_error() from error

    async def _ask_gate(self, tenant_id: str, order: Order, depth: int) -> None:
        spawn = order.spawn
        event = BeforeSpawnEvent(
            session_id=spawn.session_id,
            parent_session_id=spawn.parent_session_id,
            agent_id=spawn.agent_id,
            attachment_count=spawn.attachment_count,
            task=order.task,
            label=spawn.label,
            depth=depth,
        )
        answer = await self.hooks.before_spawn(event)
        if answer.decision.HasField("deny"):
            raise MeshError(
                Reason.SPAWN_REFUSED,
                f"plugin {answer.decided_by} refused the spawn: {answer.decision.deny.reason}",
                facts={"plugin": answer.decided_by, "plugin_reason": answer.decision.deny.reason},
            )

    async def _pass_gate(self, tenant_id: str, session_id: str) -> None:
        """From then on whoever undoes the spawn knows that plugins let it pass, who are to be told."""
        if not await sessions.pass_gate(self.database, tenant_id, session_id):
            raise _overtaken()

    async def _provision(self, tenant_id: str, order: Order) -> AttachmentSet | None:
        """Files and transcript, side by side, while it is written down that the gate was passed."""
        spawn = order.spawn
        fork = None
        if spawn.context == "FORK":
            fork = Fork(source_session_id=spawn.parent_session_id, max_token_count=self.fork_token_count)
        results = await asyncio.gather(
            self._stage(order),
            self.transcripts.create(spawn.session_id, spawn.parent_session_id, fork),
            self._pass_gate(tenant_id, spawn.session_id),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise max(errors, key=_leaves_doubt)  # Until nothing is in doubt, it must be looked at once more.
        return results[0] if isinstance(results[0], AttachmentSet) else None

    async def _stage(self, order: Order) -> AttachmentSet | None:
        spawn = order.spawn
        if not spawn.attachment_count:
            return None
        uploader = spawn.parent_session_id if spawn.parent_run_id else ""
        set_id = derived_id(IdKind.ATTACHMENT_SET, spawn.session_id)
        return await self.sets.stage(set_id, spawn.session_id, order.attachments, order.uploads, uploader)

    async def _enrol(self, tenant_id: str, order: Order, staged: AttachmentSet | None) -> DictRow:
        """The task in the transcript, the set attached, and the run in the queue; the session as it is then."""
        spawn, receipt = order.spawn, None
        entries = []
        if staged is not None:
            receipt = _receipt(staged, spawn)
            files = [NotedFile(file.name, file.size_bytes) for file in staged.files]
            note = system_note(receipt["rel_dir"], files) + mount_note(spawn.mount_path)
            entries.append(EntryBody(system_note=SystemNote(topic="attachments", text=note)))
            await self.sets.attach(staged.set_id)
        task = Message(role=ROLE_USER, content=[ContentBlock(text=Text(text=order.task))])
        await self.transcripts.append(spawn.session_id, "spawn:v1", [*entries, EntryBody(message=task)])
        started = tell_started(
            tenant_id, spawn.session_id, parent_session_id=spawn.parent_session_id, traceparent=spawn.traceparent
        )
        run, jobs = self.endings.new_run(spawn.run_timeout), described(self.endings.job_app, started)
        spawned = await sessions.enrol(self.database, tenant_id, spawn.session_id, receipt, run, jobs)
        if spawned is None:
            raise _overtaken()
        return spawned

    async def _answer_again(self, tenant_id: str, spawn: Spawn) -> DictRow:
        """What the first call with this request_id was answered, once it has been."""
        known = await self._find(tenant_id, spawn)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _wait_for_twin_seconds()
        with self.listener.subscription("session_changed", f"{tenant_id}:{known['session_id']}") as changed:
            while True:
                known = await self._find(tenant_id, spawn)
                if known["state"] == SessionState.SPAWN_FAILED:
                    raise SpawnFailure(**known["failure"]).as_error()
                if known["state"] != SessionState.PROVISIONING:
                    return await sessions.look_at(self.database, tenant_id, known["session_id"])
                left = give_up - loop.time()
                if left <= 0:
                    raise MeshError(
                        Reason.SPAWN_IN_PROGRESS,
                        "another call is working on this request_id; repeat to hear its answer",
                        retry_after_seconds=1.0,
                        facts={"session_id": known["session_id"]},
                    )
                await changed.wait(min(left, _LOOK_AGAIN_SECONDS))

    async def _find(self, tenant_id: str, spawn: Spawn) -> DictRow:
        """What is known of the request_id; REQUEST_ID_REUSED where that had another payload, NOT_FOUND where its session was deleted."""
        async with self.database.transaction(tenant_id) as connection:
            known = await sessions.find_spawn(connection, tenant_id, spawn)
        if known is None:
            raise RuntimeError("a request_id that was taken is free again")
        if bytes(known["payload_hash"]) != spawn.payload_hash:
            raise MeshError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {spawn.request_id!r} was used before with another payload; draw a new one",
                facts={"request_id": spawn.request_id},
            )
        if known["deleted"]:
            raise not_found("session", known["session_id"])
        return known


def _is_plain(spawn: Spawn) -> bool:
    """Whether only its tenant, its agent and the tenant's queue can stand against it."""
    return not (
        spawn.parent_session_id or spawn.context == "FORK" or (spawn.runtime == "EXTERNAL" and spawn.attachment_count)
    )


def _wait_for_twin_seconds() -> float:
    """How long a repeat waits for the first call: as long as its own deadline leaves time to say that it waited in vain."""
    remaining = remaining_seconds()
    if remaining is None:
        return _WAIT_FOR_TWIN_SECONDS
    return min(_WAIT_FOR_TWIN_SECONDS, remaining - _ANSWER_SECONDS)


def _overtaken() -> MeshError:
    return MeshError(
        Reason.SPAWN_FAILED,
        "the spawn took longer than it may and was undone meanwhile; spawn again with a new request_id",
        facts={"step": "deadline"},
    )


_OWN_REASONS = frozenset({Reason.SPAWN_REFUSED, Reason.SPAWN_FAILED, Reason.PLUGIN_FAILED})


def _leaves_doubt(error: BaseException) -> bool:
    """Whether a step may have had its effect although it failed."""
    return not isinstance(error, MeshError) or error.status in (
        Status.UNAVAILABLE,
        Status.DEADLINE_EXCEEDED,
        Status.RESOURCE_EXHAUSTED,
        Status.INTERNAL,
    )


def _as_answer(step: str, error: MeshError) -> MeshError:
    """What the caller is told: its own mistakes as they are, everything else as SPAWN_FAILED with the step and the cause."""
    if error.reason in _OWN_REASONS or error.reason.startswith(("ATTACHMENT", "UPLOAD")):
        return error
    return MeshError(
        Reason.SPAWN_FAILED,
        f"the spawn was undone at step {step!r}: {error.message}; spawn again with a new request_id",
        status=Status.UNAVAILABLE if _leaves_doubt(error) else Status.FAILED_PRECONDITION,
        facts={**error.facts, "step": step, "cause": error.reason},
    )


def _receipt(staged: AttachmentSet, spawn: Spawn) -> dict[str, Any]:
    return {
        "set_id": staged.set_id,
        "total_bytes": staged.total_bytes,
        "files": [
            {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256, "mime_type": file.mime_type}
            for file in staged.files
        ],
        "rel_dir": f".spawnmesh/attachments/{staged.set_id}",
        "mount_path": spawn.mount_path,
        "warnings": ["MOUNT_PATH_IGNORED"] if spawn.mount_path_ignored else [],
    }
