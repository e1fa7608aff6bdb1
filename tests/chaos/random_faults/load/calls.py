"""Calls that are repeated until they are answered, and recorded each time."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import uuid4

from spawnmesh.attachment_blob.v1.attachment_pb2 import ENCODING_UTF8, InlineAttachment
from spawnmesh.session.v1 import approval_pb2, session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_client.wire import WireMesh

from tests.chaos.random_faults.history import Call, History, Outcome

CONTENT = "content-that-is-handed-over"
"""Every attachment begins with it, except those that an agent reads."""
_AGAIN_SECONDS = (0.2, 1.5)
_TRIES = 200
_CALL_SECONDS = 20.0
_WAIT_SECONDS = 30.0


@dataclass
class Client:
    """A client of one tenant, with its own dice."""

    tenant: str
    mesh: WireMesh
    history: History
    random: Random
    stop: asyncio.Event
    accepted: list[str] = field(default_factory=list)
    """The sessions that its spawns gave."""
    slowness: float = 1.0
    """The factor of its pauses."""

    @property
    def sessions(self) -> Any:
        """The stub of the session service."""
        return SessionServiceStub(self.mesh.service("session").channel)

    async def call(
        self, operation: str, method: Any, request: Any, *, seconds: float = _CALL_SECONDS, **given: Any
    ) -> tuple[Call, Any]:
        """Make one call, and record it."""
        answer = None
        with self.history.call(operation, self.tenant, **given) as call:
            answer = await self.mesh.service("session").unary(method, request, timeout_seconds=seconds)
            call.got = facts_of(answer)
        return call, answer

    async def insist(self, operation: str, method: Any, request: Any, **given: Any) -> Any:
        """Repeat the call until it is answered or refused; return the answer, or None."""
        for _ in range(_TRIES):
            call, answer = await self.call(operation, method, request, **given)
            if call.outcome is not Outcome.UNKNOWN:
                return answer
            await self.pause(*_AGAIN_SECONDS)
        return None

    def spawn_request(self, task: str, **fields: Any) -> pb.SpawnSessionRequest:
        """Return a request with an id of its own."""
        request_id = str(uuid4()) if "request_id" not in fields else fields.pop("request_id")
        return pb.SpawnSessionRequest(request_id=request_id, task=task, **fields)

    async def spawn(self, request: pb.SpawnSessionRequest) -> str:
        """Spawn, and return the session's id; empty if it was refused."""
        answer = await self.insist("spawn", self.sessions.SpawnSession, request, **_given_of(request))
        if answer is None:
            return ""
        self.accepted.append(answer.session.session_id)
        return str(answer.session.session_id)

    async def call_spawn(self, request: pb.SpawnSessionRequest) -> tuple[Call, Any]:
        """Spawn once, and return the call and its answer, or None."""
        return await self.call("spawn", self.sessions.SpawnSession, request, **_given_of(request))

    async def wait(self, session_id: str) -> Any:
        """Wait until the newest run has ended; return the session, or None if the load ends."""
        while not self.stop.is_set():
            request = pb.WaitSessionRequest(session_id=session_id)
            request.timeout.FromSeconds(int(_WAIT_SECONDS))
            call, answer = await self.call(
                "wait",
                self.sessions.WaitSession,
                request,
                seconds=_WAIT_SECONDS + _CALL_SECONDS,
                session_id=session_id,
            )
            if answer is not None and answer.done:
                return answer.session
            if call.outcome is Outcome.REFUSED:
                return None
            await self.pause(*_AGAIN_SECONDS)
        return None

    async def interrupt(self, session_id: str) -> None:
        """Interrupt the live run of the session."""
        request = pb.InterruptRunRequest(session_id=session_id)
        await self.insist("interrupt", self.sessions.InterruptRun, request, session_id=session_id)

    async def kill(self, session_id: str) -> None:
        """Kill the session."""
        request = pb.KillSessionRequest(session_id=session_id)
        await self.insist("kill", self.sessions.KillSession, request, session_id=session_id)

    async def pause(self, shortest: float, longest: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.slowness * self.random.uniform(shortest, longest))


def _given_of(request: pb.SpawnSessionRequest) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "task": request.task,
        "label": request.label,
        "files": [item.name for item in request.attachments],
        "budget": {
            "max_model_call_count": request.budget.max_model_call_count,
            "max_token_count": request.budget.max_token_count,
        },
    }


def secret_file(name: str, text: str) -> InlineAttachment:
    """Return a file whose content may be at rest in the bucket only."""
    return InlineAttachment(
        name=name, content=f"{CONTENT} {text}\n", encoding=ENCODING_UTF8, mime_type="text/plain"
    )


def facts_of(answer: Any) -> dict[str, Any]:
    """Return the ids and states of an answer."""
    facts: dict[str, Any] = {}
    session = getattr(answer, "session", None)
    run = getattr(answer, "run", None) or getattr(session, "latest_run", None)
    if getattr(session, "session_id", ""):
        facts["session_id"] = session.session_id
    if run is not None:
        facts |= {
            "run_id": run.run_id,
            "run_state": session_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_"),
            "result_text": run.result_text[:200],
            "is_interrupted": run.HasField("interrupt_time"),
        }
    if budget := getattr(answer, "budget", None):
        facts |= {
            "session_id": budget.session_id,
            "etag": budget.etag,
            "max_model_call_count": budget.budget.max_model_call_count,
            "max_token_count": budget.budget.max_token_count,
        }
    if approval := getattr(answer, "approval", None):
        facts |= {
            "approval_id": approval.approval_id,
            "state": approval_pb2.ApprovalState.Name(approval.state).removeprefix("APPROVAL_STATE_"),
            "decided_by": approval.decided_by,
            "edited_arguments_json": approval.edited_arguments_json,
            "text": approval.text,
        }
    return facts
