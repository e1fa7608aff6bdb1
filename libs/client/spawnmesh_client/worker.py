"""Run agents of your own: a worker claims runs of the mesh and calls a function for each.

worker = Worker(mesh)

@worker.agent("researcher")
async def research(ctx: RunContext) -> str:
    return (await ctx.generate()).text

await worker.run()
"""

import asyncio
import logging
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.run_event_pb2 import ReportRunEventsRequest
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_pb2 import Runtime
from spawnmesh.transcript.v1.transcript_service_pb2 import ReleaseWriterRequest
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_core.task_group import first_failure

from spawnmesh_client.client import Mesh
from spawnmesh_client.repeated_calls import call_again
from spawnmesh_client.run_context import RunContext, run_context
from spawnmesh_client.run_events import reported_events
from spawnmesh_client.run_lease import PASSING, LeaseNotRenewed, RunInterrupted, RunLease
from spawnmesh_client.run_stops import NoAnswer, RunGivenUp
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import number_of
from spawnmesh_client.wire import WireMesh

AgentFunction = Callable[[RunContext], Awaitable[str]]
"""Work on a run and return its answer.

It is cancelled when a caller interrupts the run. `ctx.append` still works then, for what was said.
"""

_WAIT_SECONDS = 20
_ANSWER_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_WATCH_SECONDS = 3600.0
# A stream that lasted longer had been accepted, so it is opened again soon.
_ACCEPTED_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 60.0
_RELEASE_SECONDS = 3.0
_FINALIZE_SECONDS = 600.0
_LOST = (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST, Reason.TOKEN_REVOKED, Reason.TOKEN_EXPIRED)
_log = logging.getLogger("spawnmesh_client.worker")


class Worker:
    """Claim runs and call the function of their agent.

    `mesh` is connected with a runner's token (`spawnmesh token --runner --tenant T --agent A`),
    which names the tenants and agents whose runs it claims, and knows the services that the
    functions use. `runtime` is the one that the sessions were spawned with.
    """

    def __init__(
        self, mesh: Mesh, *, name: str = "", runtime: str = "EXTERNAL", max_run_count: int = 4
    ) -> None:
        self._wire = mesh.wire
        self._name = name or socket.gethostname()[:128] or "worker"
        self._runtime = Runtime.ValueType(number_of(runtime, Runtime.DESCRIPTOR))
        self._max_run_count = max_run_count
        self._functions: dict[str, AgentFunction] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._leases: set[RunLease] = set()
        self._stop = asyncio.Event()

    def agent(self, agent_id: str) -> Callable[[AgentFunction], AgentFunction]:
        """Call the decorated function for the runs of this agent."""

        def add(function: AgentFunction) -> AgentFunction:
            self._functions[agent_id] = function
            return function

        return add

    def stop(self) -> None:
        """Let `run` hand its runs back and return. SIGTERM and SIGINT do the same."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`, SIGTERM, SIGINT or a cancellation; then hand the runs back.

        Outages of the mesh do not end it. Raises MeshError if the token does not allow claims.
        """
        try:
            with _signals(self.stop):
                async with asyncio.TaskGroup() as group:
                    claiming = group.create_task(self._claim_runs(group))
                    watching = group.create_task(self._watch_changes())
                    await self._stop.wait()
                    claiming.cancel()  # The service takes back the runs of an answer under way.
                    watching.cancel()
                    for task in self._running:
                        task.cancel()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None

    async def _claim_runs(self, group: asyncio.TaskGroup) -> None:
        """Claim as many runs as are free places, and begin them in the group."""
        while True:
            free_count = self._max_run_count - len(self._running)
            if free_count == 0:
                await asyncio.wait(set(self._running), return_when=asyncio.FIRST_COMPLETED)
                continue
            for claimed in await self._claim(free_count):
                task = group.create_task(self._execute(claimed))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _claim(self, count: int) -> list[pb.ClaimedRun]:
        peer = self._wire.service("session")
        request = pb.ClaimRunsRequest(
            runner_id=self._name,
            max_run_count=min(count, 64),
            wait=Duration(seconds=_WAIT_SECONDS),
            runtimes=[self._runtime],
        )
        try:
            stub = RunServiceStub(peer.channel)
            answer = await peer.unary(
                stub.ClaimRuns, request, timeout_seconds=_WAIT_SECONDS + _ANSWER_SECONDS
            )
        except PASSING as error:
            _log.warning("no runs can be claimed now: %s", error)
            await asyncio.sleep(error.retry_after_seconds or _PAUSE_SECONDS)
            return []
        return list(answer.runs)

    async def _watch_changes(self) -> None:
        """Renew all leases whenever the mesh says that runs were interrupted or killed.

        The heartbeats find that out as well, so no error ends it: also an older mesh, which has no
        such call.
        """
        peer = self._wire.service("session")
        request = pb.WatchRunChangesRequest(runner_id=self._name)
        pause = _PAUSE_SECONDS
        while True:
            opened = monotonic_seconds()
            stub = RunServiceStub(peer.channel)
            changes = peer.stream(stub.WatchRunChanges, request, timeout_seconds=_WATCH_SECONDS)
            try:
                async with aclosing(changes):
                    async for _ in changes:
                        for lease in self._leases:
                            lease.renew_soon()
            except MeshError as error:
                _log.debug("changes of runs are found by heartbeats alone now: %s", error)
            if monotonic_seconds() - opened > _ACCEPTED_SECONDS:
                pause = _PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _execute(self, claimed: pb.ClaimedRun) -> None:
        """Work on one run and end it: with an answer, as interrupted, as failed, back in the queue,
        or waiting for its budget.
        """
        token = [claimed.run_token]
        peers = {
            name: TokenPeer(peer.connection, lambda: token[0]) for name, peer in self._wire.services.items()
        }
        mesh = Mesh(WireMesh(peers, self._wire.max_message_bytes))
        with tempfile.TemporaryDirectory(prefix="spawnmesh-run-") as folder:
            context = run_context(claimed, mesh, Path(folder))
            lease = RunLease(context, token)
            self._leases.add(lease)
            try:
                async with _reporting(context):
                    await self._under_lease(context, lease)
            except asyncio.CancelledError:
                await _release(context)
                raise
            except RunGivenUp:
                _log.info("%s is given up: it waits for a person or for its budget", context.run_id)
            except LeaseNotRenewed:
                _log.warning("%s is given up: its lease could not be renewed", context.run_id)
            except Exception as error:  # noqa: BLE001 - a failed run does not end the worker
                if refused_with(error, *_LOST):
                    _log.warning("%s is over, or another runner has it: %s", context.run_id, error)
                elif isinstance(error, PASSING):
                    _log.warning("%s is tried again later: %s", context.run_id, error)
                    await _release(context, error)
                else:
                    _log.exception("%s failed", context.run_id)
                    await _fail(context, error)
            finally:
                self._leases.discard(lease)
                await _release_writer(context)

    async def _under_lease(self, context: RunContext, lease: RunLease) -> None:
        """Do the work while heartbeats renew the lease and the token; stop if the lease is lost."""
        try:
            # In a task of its own: in Python 3.11 a group that fails leaves its task marked as
            # cancelled, and the run still has to be ended.
            await asyncio.create_task(self._leased(context, lease))
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None

    async def _leased(self, context: RunContext, lease: RunLease) -> None:
        async with asyncio.TaskGroup() as group:
            heartbeats = group.create_task(lease.renew())
            try:
                await self._answer(context, lease)
            except RunInterrupted as interrupted:
                _log.info("%s is interrupted", context.run_id, exc_info=interrupted.__cause__)
                await _end_interrupted(context)
            heartbeats.cancel()

    async def _answer(self, context: RunContext, lease: RunLease) -> None:
        """Call the function until the mesh accepts its answer. Raises RunInterrupted."""
        async with lease.interruptible():
            function = self._functions.get(context.agent.agent_id)
            if function is None:
                raise LookupError(f"no function for the agent {context.agent.agent_id}")
            await context.take_over()
        accepted = False
        while not accepted:
            async with lease.interruptible():
                answer = await _called(function, context)
                if not isinstance(answer, str):
                    raise TypeError("the function of an agent returns its answer as text")
            accepted = await _offer(context, answer)


def _reporting(context: RunContext) -> AbstractAsyncContextManager[None]:
    """Tell the watchers of the session during the block which models failed, and what plugins
    decided.
    """
    peer = context.mesh.wire.service("session")

    async def report(request: ReportRunEventsRequest) -> object:
        return await call_again(peer, RunServiceStub(peer.channel).ReportRunEvents, request)

    return reported_events(context.run_events, report, context.claimed)


async def _called(function: AgentFunction, context: RunContext) -> str:
    """Return the answer of the function. Call it again if its model call was refused, and the
    budgets have room by now.

    Raises RunGivenUp if they have none, also if the function goes on without its run.
    """
    while True:
        try:
            answer = await function(context)
        except Exception as error:
            if context.is_given_up or not refused_with(error, Reason.SESSION_BUDGET_EXCEEDED):
                raise
            await context.wait_for_budget()
        else:
            if context.is_given_up:
                raise RunGivenUp
            return answer


async def _offer(context: RunContext, answer: str) -> bool:
    """Offer the answer. Return False if the function must be called again: plugins want a revision,
    or a message came. Raises RunInterrupted.
    """
    peer = context.mesh.wire.service("session")
    request = pb.FinalizeRunRequest(
        epoch=context.claimed.run.epoch,
        draft_entry_id=context.turns.entry_of(answer) or await context.append(answer),
        draft_text=answer,
        usage=context.usage,
        has_final_effects=context.turns.has_final_effects,
        is_last_turn=context.turns.is_last,
    )
    while True:
        await context.run_events.reported()
        stub = RunServiceStub(peer.channel)
        outcome = await peer.unary(stub.FinalizeRun, request, timeout_seconds=_FINALIZE_SECONDS)
        if outcome.HasField("accepted"):
            return True
        if outcome.HasField("interrupted"):
            raise RunInterrupted
        if outcome.HasField("messages_pending"):
            context.turns.grant_late_turns()
        context.instruction = outcome.revise.instruction
        if await context.read_inbox() or outcome.HasField("revise"):
            return False


async def _end_interrupted(context: RunContext) -> None:
    """End the run as interrupted. The messages that the function appended stay."""
    request = pb.EndInterruptedRunRequest(epoch=context.claimed.run.epoch, usage=context.usage)
    peer = context.mesh.wire.service("session")
    await call_again(peer, RunServiceStub(peer.channel).EndInterruptedRun, request)


async def _release(context: RunContext, error: MeshError | None = None) -> None:
    """Hand the run back to the queue. If that fails, its lease ends by itself."""
    request = pb.ReleaseRunRequest(epoch=context.claimed.run.epoch)
    if error is not None:
        request.delay.reason = reason_number(error.reason)
        request.delay.message = f"{error.facts.get('dependency', 'a service')} could not be used"
    peer = context.mesh.wire.service("session")
    with suppress(MeshError):
        await peer.unary(RunServiceStub(peer.channel).ReleaseRun, request, timeout_seconds=_RELEASE_SECONDS)


async def _fail(context: RunContext, error: Exception) -> None:
    """End the run as failed. The message has the type of the error and no content."""
    reason, message = Reason.RUNNER_ERROR, f"the agent's function raised {type(error).__name__}"
    if isinstance(error, MeshError):
        reason, message = error.reason, f"{error.reason} of {error.domain or 'the client'}"
    elif isinstance(error, NoAnswer):
        reason, message = error.reason, str(error)
    request = pb.FailRunRequest(
        epoch=context.claimed.run.epoch,
        reason=reason_number(reason),
        message=message,
        usage=context.usage,
    )
    peer = context.mesh.wire.service("session")
    with suppress(MeshError):
        await call_again(peer, RunServiceStub(peer.channel).FailRun, request)


async def _release_writer(context: RunContext) -> None:
    peer = context.mesh.wire.services.get("transcript")
    if peer is not None:
        request = ReleaseWriterRequest(session_id=context.session.session_id, claim=context.writer)
        with suppress(MeshError):
            stub = TranscriptServiceStub(peer.channel)
            await peer.unary(stub.ReleaseWriter, request, timeout_seconds=_RELEASE_SECONDS)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT, where the loop of this thread can take signals."""
    loop = asyncio.get_running_loop()
    taken = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
