"""SpawnSession. Spawns a session."""

import hashlib

from spawnmesh.attachment_blob.v1.attachment_pb2 import (
    ENCODING_BASE64,
    ENCODING_UNSPECIFIED,
    ENCODING_UTF8,
    InlineAttachment,
)
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest, SpawnSessionResponse
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, is_id, new_id
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_session.domain.agents import DEFAULT_AGENT_ID
from spawnmesh_session.domain.inline_files import bytes_of_base64
from spawnmesh_session.domain.runs import DEFAULT_RUN_TIMEOUT, CallingRun
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.domain.spawns import SpawnSpec, mount_path_of
from spawnmesh_session.operations.callers import calling_run_of
from spawnmesh_session.operations.scheduled_spawns import SpawnScheduled
from spawnmesh_session.operations.spawn_saga import SpawnCommand, SpawnSaga
from spawnmesh_session.rpc.budget_messages import parse_new_limits
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_enum, parse_text, parse_thinking, render_session


async def spawn_session(
    request: SpawnSessionRequest, caller: Caller, deps: Dependencies
) -> SpawnSessionResponse:
    """Spawn the session, or give the answer of the first call with the request_id."""
    command = parse_spawn_command(request, calling_run_of(caller))
    session = await deps.spawn_saga.spawn(caller.tenant_id, command)
    return SpawnSessionResponse(session=render_session(session))


def scheduled_spawns_by(saga: SpawnSaga) -> SpawnScheduled:
    """Return a function that spawns the sessions of schedules by the saga, as clients do."""

    async def spawn(tenant_id: str, request: SpawnSessionRequest) -> Session:
        return await saga.spawn(tenant_id, parse_spawn_command(request, None))

    return spawn


def parse_spawn_command(request: SpawnSessionRequest, calling: CallingRun | None) -> SpawnCommand:
    """Return the command with a new session id.

    If a run calls, its session is the parent. A client may name a parent.
    """
    parent_session_id, parent_run_id, parent_epoch = request.parent_session_id, "", 0
    if calling is not None:
        if parent_session_id not in ("", calling.session_id):
            raise not_found("session", parent_session_id)
        parent_session_id, parent_run_id, parent_epoch = calling.session_id, calling.run_id, calling.epoch
    elif parent_session_id and not is_id(IdKind.SESSION, parent_session_id):
        raise invalid("parent_session_id", "is not a session id")
    _check_fork(request)
    hint = request.attach_as.mount_path
    mode = request.mode or session_pb2.SESSION_MODE_RUN
    context = request.context or _default_context(request)
    cleanup = request.cleanup or session_pb2.CLEANUP_DELETE
    runtime = request.runtime or session_pb2.RUNTIME_SUBAGENT
    spec = SpawnSpec(
        session_id=new_id(IdKind.SESSION),
        request_id=parse_text("request_id", request.request_id),
        payload_hash=_payload_hash(request, parent_session_id),
        task_hash=hashlib.sha256(request.task.encode()).hexdigest(),
        agent_id=parse_text("agent_id", request.agent_id) or DEFAULT_AGENT_ID,
        label=parse_text("label", request.label),
        model=parse_text("model", request.model),
        mode=parse_enum(session_pb2.SessionMode, mode, "SESSION_MODE_"),
        context=parse_enum(session_pb2.ContextMode, context, "CONTEXT_MODE_"),
        cleanup=parse_enum(session_pb2.Cleanup, cleanup, "CLEANUP_"),
        runtime=parse_enum(session_pb2.Runtime, runtime, "RUNTIME_"),
        run_timeout=request.run_timeout.ToTimedelta()
        if request.HasField("run_timeout")
        else DEFAULT_RUN_TIMEOUT,
        parent_session_id=parent_session_id,
        parent_run_id=parent_run_id,
        mount_path=mount_path_of(hint),
        mount_path_ignored=bool(hint) and not mount_path_of(hint),
        attachment_count=len(request.attachments) + len(request.uploads) + len(request.references),
        traceparent=current_traceparent(),
        parent_epoch=parent_epoch,
        thinking=parse_thinking(request.thinking),
        metadata={key: parse_text("metadata[]", text) for key, text in request.metadata.items()},
        fork_session_id=request.fork.session_id,
        fork_seq=request.fork.seq,
        budget=parse_new_limits(request.budget) if request.HasField("budget") else None,
    )
    task = parse_text("task", request.task)
    return SpawnCommand(
        spec, task, list(request.attachments), list(request.uploads), list(request.references)
    )


def _default_context(request: SpawnSessionRequest) -> "session_pb2.ContextMode.ValueType":
    return session_pb2.CONTEXT_MODE_FORK if request.HasField("fork") else session_pb2.CONTEXT_MODE_ISOLATED


def _check_fork(request: SpawnSessionRequest) -> None:
    """Raise INVALID_REQUEST for a fork with another context or a malformed session id."""
    if not request.HasField("fork"):
        return
    if request.context == session_pb2.CONTEXT_MODE_ISOLATED:
        raise invalid("context", "is ISOLATED, and `fork` names what to copy")
    if request.fork.session_id and not is_id(IdKind.SESSION, request.fork.session_id):
        raise invalid("fork.session_id", "is not a session id")


def _payload_hash(request: SpawnSessionRequest, parent_session_id: str) -> bytes:
    """Return the SHA-256 of the request without its request_id, with the resolved parent.

    Files count by their bytes, whether they came as bytes, text or base64.
    """
    payload = SpawnSessionRequest()
    payload.CopyFrom(request)
    payload.request_id = ""
    payload.parent_session_id = parent_session_id
    for file in payload.attachments:
        data = _bytes_of(file)
        if data is not None:
            file.data = data
            file.encoding = ENCODING_UNSPECIFIED
    return hashlib.sha256(payload.SerializeToString(deterministic=True)).digest()


def _bytes_of(file: InlineAttachment) -> bytes | None:
    """Return the bytes of a file that is sent as text; None for bytes, and for malformed text."""
    if file.HasField("data"):
        return None
    if file.encoding == ENCODING_UTF8:
        return file.content.encode()
    return bytes_of_base64(file.content) if file.encoding == ENCODING_BASE64 else None
