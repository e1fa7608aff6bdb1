"""Short calls of the session service that many tests make."""

from uuid import uuid4

from google.protobuf.duration_pb2 import Duration
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.peers import Peer

from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh


def content_of(agent: AgentProfile) -> AgentProfile:
    """Return the agent without its version and its etag."""
    content = AgentProfile()
    content.CopyFrom(agent)
    content.ClearField("version")
    content.ClearField("etag")
    return content


DAY = Duration(seconds=86400)


def another(mesh: Mesh) -> Mesh:
    return Mesh(mesh.peer, mesh.keys, mesh.settings)


async def send(mesh: Mesh, session_id: str, text: str = "wait") -> session_pb2.Run:
    request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text=text)
    run: session_pb2.Run = (await mesh.client(mesh.sessions.SendMessage, request)).run
    return run


async def kill(mesh: Mesh, session_id: str) -> int:
    request = pb.KillSessionRequest(session_id=session_id)
    return int((await mesh.client(mesh.sessions.KillSession, request)).killed_run_count)


async def fail(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no")
    await mesh.run(held, mesh.runs.FailRun, request)


async def finalize(
    mesh: Mesh, transcript: Peer, held: run_pb.ClaimedRun, text: str = "42"
) -> run_pb.FinalizeRunResponse:
    answer: run_pb.FinalizeRunResponse = await mesh.run(
        held, mesh.runs.FinalizeRun, await draft(transcript, held, text)
    )
    return answer


async def offer(
    mesh: Mesh, held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest
) -> run_pb.FinalizeRunResponse:
    offered.epoch = held.run.epoch
    answer: run_pb.FinalizeRunResponse = await mesh.run(held, mesh.runs.FinalizeRun, offered)
    return answer


async def take_all(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    box = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    keys = [message.key for message in box.messages]
    await mesh.run(
        held, mesh.runs.AcknowledgeInbox, run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
    )


_FILL = """
insert into agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents, max_turn_count,
    context_token_budget)
select %(tenant)s, 'filler-' || lpad(n::text, 4, '0'), '', '{}', '{}', %(spawnable)s, 0, 0
    from generate_series(1, %(count)s) n
"""


async def fill_agents(
    database: Database, tenant: str, count: int, *, spawnable: tuple[str, ...] = ()
) -> list[str]:
    """So many agents; their ids in order."""
    async with database.transaction(tenant) as connection:
        await connection.execute(_FILL, {"tenant": tenant, "count": count, "spawnable": list(spawnable)})
    return [f"filler-{number:04}" for number in range(1, count + 1)]
