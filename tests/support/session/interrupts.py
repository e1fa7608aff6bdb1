"""Interrupts of runs, and the calls of a runner that obeys them."""

from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh

OPEN = session_pb2.SESSION_MODE_SESSION
RUNNING, INTERRUPTED, SUCCEEDED = (
    session_pb2.RUN_STATE_RUNNING,
    session_pb2.RUN_STATE_INTERRUPTED,
    session_pb2.RUN_STATE_SUCCEEDED,
)


async def interrupt(mesh: Mesh, session_id: str, **fields: Any) -> session_pb2.Run:
    request = pb.InterruptRunRequest(session_id=session_id, **fields)
    run: session_pb2.Run = (await mesh.client(mesh.sessions.InterruptRun, request)).run
    return run


async def steer(mesh: Mesh, session_id: str, text: str = "hurry", **fields: Any) -> session_pb2.Run:
    return await interrupt(mesh, session_id, **{"text": text, "request_id": uuid4().hex, **fields})


async def beat(mesh: Mesh, held: run_pb.ClaimedRun) -> "run_pb.Interrupt.ValueType":
    request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    answer: run_pb.HeartbeatRunResponse = await mesh.run(held, mesh.runs.HeartbeatRun, request)
    return answer.interrupt


async def end(mesh: Mesh, held: run_pb.ClaimedRun) -> session_pb2.Run:
    usage = TokenUsage(input_token_count=5)
    request = run_pb.EndInterruptedRunRequest(epoch=held.run.epoch, usage=usage)
    run: session_pb2.Run = (await mesh.run(held, mesh.runs.EndInterruptedRun, request)).run
    return run


async def refusal_of(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value.reason


async def held_run(mesh: Mesh, mode: Any = OPEN) -> run_pb.ClaimedRun:
    return await mesh.claim((await mesh.spawn(mode=mode)).session_id)
