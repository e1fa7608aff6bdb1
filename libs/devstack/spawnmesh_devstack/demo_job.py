"""The demo's job: a client gives three files to a coordinator and waits for its answer."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import hook_service_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1.approval_pb2 import APPROVAL_STATE_PENDING, Approval
from spawnmesh.session.v1.approval_service_pb2 import (
    Approve,
    DecideApprovalRequest,
    ListApprovalsRequest,
)
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh.session.v1.budget_pb2 import Budget, SessionBudget
from spawnmesh.session.v1.session_pb2 import SESSION_VIEW_FULL, Session, SessionEvent
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_devstack import demo_plugin
from spawnmesh_devstack.demo_agents import plugin_at
from spawnmesh_devstack.demo_budget import budget_of, raise_if_it_waits
from spawnmesh_devstack.demo_live import Heard, listen
from spawnmesh_devstack.demo_published import PublishedFile, read_published
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import Member, Readiness, process_variables, python_module
from spawnmesh_devstack.ports import free_ports

_LOOK_EVERY_SECONDS = 5.0
_PERSON_SECONDS = 0.2  # A quick person.
_LAST_NEWS_SECONDS = 60.0


class DemoPlace(Protocol):
    """The mesh on which the job is done: one of the demo's own, or the one that is up."""

    @property
    def targets(self) -> Mapping[str, str]:
        """Each service's `host:port` by its kebab id."""

    @property
    def keys(self) -> Path:
        """The directory with every issuer's key."""

    @property
    def otlp_endpoint(self) -> str:
        """The endpoint for spans."""

    def admin_token(self) -> str:
        """Return a token for an operator of the mesh."""

    def client_token(self, tenant_id: str) -> str:
        """Return a token for a client of the tenant."""

    async def start(self, *several: Member) -> None:
        """Start processes, and return when they serve."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job: the agent that the client spawns, its task and files, the time limit, and a budget
    that a person raises when a run waits for it.
    """

    agents: Sequence[AgentProfile]
    task: str
    files: Sequence[Path]
    timeout_seconds: float
    budget: Budget | None = None

    @property
    def first_agent(self) -> str:
        """The agent that the client spawns."""
        return self.agents[0].agent_id


@dataclass(frozen=True, slots=True)
class Done:
    """The result: sessions, parents before children, each with its transcript and its events, what
    a person approved, what a watcher heard of each session, the files that were published, and the
    budget that the sessions share.
    """

    sessions: Sequence[Session]
    transcripts: dict[str, list[Entry]]
    events: dict[str, list[SessionEvent]]
    approvals: Sequence[Approval] = ()
    heard: dict[str, Heard] = field(default_factory=dict)
    published: Sequence[PublishedFile] = ()
    budget: SessionBudget | None = None

    @property
    def parent(self) -> Session:
        """The session that the client spawned."""
        return self.sessions[0]


async def do_job(place: DemoPlace, tenant_id: str, job: Job, spawned: Callable[[Session], None]) -> Done:
    """Create the tenant, its agents and its plugin, do the job, and collect the result. Call
    `spawned` early.

    Raises StackError if the mesh refuses or the time is over.
    """
    try:
        async with _connection(place, place.admin_token()) as operator:
            await operator.create_tenant(tenant_id, display_name="The demo")
        async with _connection(place, place.client_token(tenant_id)) as mesh:
            for agent in job.agents:
                await mesh.put_agent(agent)
            await _register_plugin(place, mesh, tenant_id)
            session = await mesh.spawn(
                job.task,
                agent_id=job.first_agent,
                attachments=job.files,
                label="the demo's job",
                mount_path="input",
                budget=job.budget,
            )
            spawned(session)
            heard: dict[str, Heard] = {}
            person = asyncio.create_task(_decide_steadily(mesh, session.session_id, job))
            watcher = asyncio.create_task(listen(mesh, session.session_id, heard))
            try:
                await _wait(mesh, session.session_id, job.timeout_seconds)
                async with asyncio.timeout(_LAST_NEWS_SECONDS):
                    await watcher
            except TimeoutError:
                raise StackError("the watcher of the sessions did not hear their end") from None
            finally:
                person.cancel()
                watcher.cancel()
            return await _gather(mesh, session.session_id, heard)
    except MeshError as error:
        raise StackError(f"the mesh refused: {error}") from error


async def deliveries(place: DemoPlace, tenant_id: str) -> list[delivery_pb.Delivery]:
    """Return the calls and deliveries of hooks, oldest first. Observers hear of an end a moment
    after it.
    """
    async with _connection(place, place.client_token(tenant_id)) as mesh:
        hooks = mesh.service("hook")
        request = hook_service_pb2.ListDeliveriesRequest()
        return [
            *reversed((await hooks.unary(HookServiceStub(hooks.channel).ListDeliveries, request)).deliveries)
        ]


async def pause_plugin(place: DemoPlace, tenant_id: str) -> None:
    """Let the tenant go on without the plugin, whose process ends."""
    async with _connection(place, place.client_token(tenant_id)) as mesh:
        hooks = mesh.service("hook")
        request = hook_service_pb2.PausePluginRequest(name=demo_plugin.NAME)
        await hooks.unary(HookServiceStub(hooks.channel).PausePlugin, request)


async def delete_family(place: DemoPlace, tenant_id: str, session_id: str) -> None:
    """Delete the session and its descendants, with the files that they have published."""
    async with _connection(place, place.client_token(tenant_id)) as mesh:
        await mesh.delete(session_id)


def _connection(place: DemoPlace, token: str) -> AbstractAsyncContextManager[WireMesh]:
    targets = place.targets
    return connect_wire(
        session=targets["session"],
        transcript=targets["transcript"],
        attachment_blob=targets["attachment-blob"],
        hook=targets["hook"],
        token=token,
        settings=ProcessSettings(),
    )


async def _register_plugin(place: DemoPlace, mesh: WireMesh, tenant_id: str) -> None:
    name, port = demo_plugin.NAME, free_ports(1)[0]
    env = process_variables(name, port, place.keys, place.otlp_endpoint)
    env["DEMO_PLUGIN_TENANTS"] = json.dumps([tenant_id])
    await place.start(Member(name, python_module(demo_plugin.__name__), env, Readiness.GRPC, port))
    hooks = mesh.service("hook")
    request = hook_service_pb2.UpdatePluginRequest(allow_missing=True, plugin=plugin_at(port))
    await hooks.unary(HookServiceStub(hooks.channel).UpdatePlugin, request)


async def _wait(mesh: WireMesh, session_id: str, timeout_seconds: float) -> None:
    """Wait until the session is done. Raise StackError if the time is over, or no model answers.

    The mesh would wait for a model until the run's deadline. A person at the terminal would not.
    """
    deadline = monotonic_seconds() + timeout_seconds
    while (left := deadline - monotonic_seconds()) > 0:
        if (await mesh.wait(session_id, min(left, _LOOK_EVERY_SECONDS))).done:
            return
        for session in await _family(mesh, session_id):
            delay = session.latest_run.delay
            if reason_of(delay.reason) is Reason.ALL_CANDIDATES_FAILED:
                raise StackError(f"no model answers: {delay.message}")
    raise StackError(f"{session_id} was not done after {timeout_seconds:g} s")


async def _decide_steadily(mesh: WireMesh, session_id: str, job: Job) -> None:
    """Approve each tool call of the family that waits for a person, and raise the budget of the
    session if it waits. It never returns.
    """
    pending = ListApprovalsRequest(session_id=session_id, state=APPROVAL_STATE_PENDING)
    while True:
        for approval in await _approvals(mesh, pending):
            request = DecideApprovalRequest(approval_id=approval.approval_id, approve=Approve())
            peer = mesh.service("session")
            await peer.unary(ApprovalServiceStub(peer.channel).DecideApproval, request)
        if job.budget is not None:
            await raise_if_it_waits(mesh, session_id)
        await asyncio.sleep(_PERSON_SECONDS)


async def _approvals(mesh: WireMesh, request: ListApprovalsRequest) -> Sequence[Approval]:
    peer = mesh.service("session")
    return (await peer.unary(ApprovalServiceStub(peer.channel).ListApprovals, request)).approvals


async def _family(mesh: WireMesh, parent_id: str) -> list[Session]:
    """Return the session and its descendants, parents before children."""
    sessions = [await mesh.session(parent_id)]
    for session in sessions:  # the list grows in the loop: children follow their parents
        of_parent = f"parent_session_id = {session.session_id}"
        sessions += [child async for child in mesh.sessions(filter=of_parent, view=SESSION_VIEW_FULL)]
    return sessions


async def _gather(mesh: WireMesh, parent_id: str, heard: dict[str, Heard]) -> Done:
    sessions = await _family(mesh, parent_id)
    return Done(
        sessions=sessions,
        transcripts={
            session.session_id: [entry async for entry in mesh.transcript(session.session_id)]
            for session in sessions
        },
        events={session.session_id: await _events(mesh, session.session_id) for session in sessions},
        approvals=await _approvals(mesh, ListApprovalsRequest(session_id=parent_id)),
        heard=heard,
        published=[file for session in sessions for file in await read_published(mesh, session)],
        budget=await budget_of(mesh, parent_id),
    )


async def _events(mesh: WireMesh, session_id: str) -> list[SessionEvent]:
    messages = mesh.watch(WatchSessionRequest(session_id=session_id))
    return [message.session_event async for message in messages]
