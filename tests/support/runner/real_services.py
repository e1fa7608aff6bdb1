"""A runner between the real services. Only its models are scripted: by the name of the agent."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any
from uuid import uuid4

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1 import model_router_service_pb2_grpc as router_grpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_runner.app import open_service
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.model_router.answers import calling, said, saying
from tests.support.serving import caller_at, served, shared_settings
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.outputs import Blobs
from tests.support.waiting import eventually

HEARD = (message_pb2.ROLE_USER, message_pb2.ROLE_TOOL_RESULT)
TOOLS = ("write_file", "read_file", "publish_files", "fetch_files", "sessions_spawn", "sessions_wait")
ENDED = tuple(
    getattr(session_pb2, f"RUN_STATE_{name}")
    for name in ("SUCCEEDED", "FAILED", "KILLED", "TIMED_OUT", "INTERRUPTED")
)

Messages = list[message_pb2.Message]
Said = tuple[str, Mapping[str, Any]] | str
"""A call of a tool with its arguments, or an answer."""

Move = Said | Callable[[Messages], Said | Awaitable[Said]]
"""The answer of a model, or a function of the messages that makes it."""

OpenRouter = Callable[[str], AbstractAsyncContextManager[str]]
"""Opens a model router for the session service at a target, and yields the router's target."""

_ROLE = re.compile(r"You are (\S+)\.")


class RoleModels(router_grpc.ModelRouterServiceServicer):
    """Models that make the moves of the agent that the system prompt names, one in each turn."""

    def __init__(self) -> None:
        self.moves: dict[str, tuple[Move, ...]] = {}
        self.read: dict[str, Messages] = {}
        """The messages that the models of a role have read last, by the role."""

    async def Generate(
        self, request: router_pb.GenerateRequest, context: Any
    ) -> AsyncIterator[router_pb.GenerateResponse]:
        role = _ROLE.search(request.system_prompt)
        assert role is not None
        messages = self.read[role[1]] = list(request.messages)
        turn = sum(message.role == message_pb2.ROLE_ASSISTANT for message in messages)
        move = self.moves[role[1]][turn]
        if callable(move):
            made = move(messages)
            move = await made if isawaitable(made) else made
        yield said(attempt_started=router_pb.AttemptStarted(number=1, model=request.model))
        yield said(completion=generation_pb2.Completion(message=answer_of(move)))


def answer_of(move: Said) -> message_pb2.Message:
    """Return the answer of a model that makes the move."""
    if isinstance(move, str):
        return saying(move)
    tool, arguments = move
    return calling((f"call_{uuid4().hex}", tool, json.dumps(arguments)))


def text_of(message: message_pb2.Message) -> str:
    """Return all texts of a message, a line for each."""
    return "\n".join(block.text.text for block in message.content if block.HasField("text"))


def results_in(messages: Messages) -> list[str]:
    """Return the results of the calls among the messages."""
    return [text_of(message) for message in messages if message.role == message_pb2.ROLE_TOOL_RESULT]


def set_in(messages: Messages) -> str:
    """Return the newest id of a set that the model reads."""
    read = "\n".join(text_of(message) for message in messages if message.role in HEARD)
    return str(re.findall(r"att_[0-9a-z]{26}", read)[-1])


@dataclass(frozen=True, slots=True)
class Among:
    """The services with a tenant of the test's own, and the models of the runner."""

    mesh: Mesh
    blobs: Blobs
    transcript: Peer
    models: RoleModels
    workspace_root: Path
    start_runner: Callable[[], AbstractAsyncContextManager[None]]

    @property
    def workspace(self) -> Path:
        """The workspace of the only run."""
        (workspace,) = self.workspace_root.iterdir()
        return workspace

    def role(self, agent_id: str) -> str:
        return f"{agent_id}@{self.mesh.tenant}"

    async def put(self, agent_id: str, *moves: Move) -> None:
        """Create an agent that makes these moves."""
        self.models.moves[self.role(agent_id)] = moves
        await self.mesh.put_agent(
            AgentProfile(
                agent_id=agent_id,
                system_prompt=f"You are {self.role(agent_id)}.",
                tools=TOOLS,
                spawnable_agents=["*"],
                models=["scripted/one"],
            )
        )

    async def ended(self, session_id: str) -> session_pb2.Session:
        """Return the session when its run has ended."""

        async def is_over() -> bool:
            return (await self.mesh.get(session_id)).latest_run.state in ENDED

        await eventually(is_over, within_seconds=120)
        return await self.mesh.get(session_id)

    async def run(self, agent_id: str, **fields: Any) -> session_pb2.Session:
        """Spawn a session with the agent, and return it when its answer is accepted."""
        spawned = await self.mesh.spawn(agent_id=agent_id, **fields)
        session = await self.ended(spawned.session_id)
        assert session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, session.latest_run
        return session

    def results(self, agent_id: str) -> list[str]:
        """Return the results that the agent's models have read."""
        return results_in(self.models.read[self.role(agent_id)])


@asynccontextmanager
async def open_among(
    open_mesh: OpenMesh,
    peers: Mapping[str, str],
    keys: Path,
    workspace_root: Path,
    settings: TenantSettings | None = None,
    open_router: OpenRouter | None = None,
    **runner: Any,
) -> AsyncIterator[Among]:
    """Serve session beside its real peers, and the scripted models, with a tenant of its own.

    Or, with `open_router`, the router that it opens, which gets the target of the session service.
    """
    models = RoleModels()

    @asynccontextmanager
    async def open_models(process: Process, chosen: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        servicer: Any = models  # To the type checker, a peer without some RPCs is abstract.
        router_grpc.add_ModelRouterServiceServicer_to_server(servicer, server)
        yield server

    (port,) = free_ports(1)
    if open_router is not None:
        router = open_router(f"{LOOPBACK}:{port}")
    else:
        router = served("model-router", ProcessSettings(**shared_settings("model-router", keys)), open_models)
    async with (
        router as router_target,
        open_mesh(
            port=port, **({"elsewhere": {"model-router": router_target}} if open_router else {})
        ) as mesh,
        caller_at(peers["attachment-blob"], "attachment-blob") as blob,
        caller_at(peers["transcript"], "transcript") as transcript,
    ):
        await mesh.create_tenant(settings=settings)
        chosen = RunnerSettings(
            **shared_settings("runner", keys),
            session_target=f"{LOOPBACK}:{port}",
            transcript_target=peers["transcript"],
            model_router_target=router_target,
            attachment_blob_target=peers["attachment-blob"],
            hook_target=peers["hook"],
            workspace_root=workspace_root,
            **{"claim_wait_seconds": 1.0, **runner},
        )

        @asynccontextmanager
        async def start_runner() -> AsyncIterator[None]:
            async with start_process("runner", chosen) as process, open_service(process, chosen):
                yield

        yield Among(mesh, Blobs(blob, mesh), transcript, models, workspace_root, start_runner)
