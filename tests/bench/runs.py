"""The cost of claiming a run and of finalizing it, against the calls that each makes.

A claim is one call to session that commits twice: it takes the entry of the queue, and claims the
run. To finalize is one call to session, which asks transcript about the draft and masks it there.
The floor of each call is made by the same client at a bare server, which commits one row. No plugin
is registered, so no call to hook is part of it.

The runner of the mesh is paused meanwhile: it would claim the runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from opentelemetry.trace import NoOpTracer
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.harness import Bench
from tests.bench.session import TASK, floors
from tests.support.session.drafting import draft

TENANT = "bench-runs"
ROUNDS = 150
WARM_UP = 20
BOUND = 3.5


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims runs as a runner of the mesh does."""

    peer: Peer
    stub: Any
    token: str

    async def claim(self) -> run_pb.ClaimedRun:
        """Claim one run, which must be there."""
        with use_token(self.token):
            request = run_pb.ClaimRunsRequest(runner_id="bench", max_run_count=1)
            claimed = await self.peer.unary(self.stub.ClaimRuns, request)
        if not claimed.runs:
            raise RuntimeError("no run was there to be claimed")
        first: run_pb.ClaimedRun = claimed.runs[0]
        return first

    async def finalize(self, held: run_pb.ClaimedRun, request: run_pb.FinalizeRunRequest) -> None:
        """Finalize the run with its draft, which must be accepted."""
        with use_token(held.run_token):
            answer = await self.peer.unary(self.stub.FinalizeRun, request, timeout_seconds=60)
        if not answer.HasField("accepted"):
            raise RuntimeError("the draft was not accepted")


@asynccontextmanager
async def open_claims(stack: Stack) -> AsyncIterator[Claims]:
    """Connect to session with the token of a runner."""
    process = Process("bench", ProcessSettings(), minter=None, verifier=None, tracer=NoOpTracer())
    token = TokenMinter("runner", stack.keys / "runner.pem").runner_token()
    async with open_peer(process, "session", stack.targets["session"]) as peer:
        yield Claims(peer, RunServiceStub(peer.channel), token)


async def run(bench: Bench) -> None:
    """Compare both with their floors, on runs of one tenant."""
    stack = await bench.stack()
    process = Process("bench", ProcessSettings(), minter=None, verifier=None, tracer=NoOpTracer())
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    stack.processes["runner"].pause()
    try:
        async with (
            connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh,
            open_claims(stack) as claims,
            open_peer(process, "transcript", stack.targets["transcript"]) as transcript,
            floors(stack) as floor,
        ):
            works = {
                "claim.floor": lambda: floor(1),
                "claim": lambda: _claim(mesh, claims),
                "finalize.floor": lambda: floor(2),
                "finalize": lambda: _finalize(mesh, claims, transcript),
            }
            await mesh.spawn(TASK)  # The last claim of the runner still waits, and takes this run.
            samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    finally:
        stack.processes["runner"].resume()
    for name in ("claim", "finalize"):
        bench.latency(f"runs.{name}", samples[name], samples[f"{name}.floor"], BOUND)


async def _claim(mesh: WireMesh, claims: Claims) -> float:
    """Return the seconds of the claim alone. The session is killed, so that its run holds no place."""
    await mesh.spawn(TASK)
    began = perf_counter()
    held = await claims.claim()
    took = perf_counter() - began
    await mesh.kill(held.session.session_id)
    return took


async def _finalize(mesh: WireMesh, claims: Claims, transcript: Peer) -> float:
    """Return the seconds of the finalize alone, of a run whose draft is in its transcript."""
    await mesh.spawn(TASK)
    held = await claims.claim()
    request = await draft(transcript, held, "Blue.")
    began = perf_counter()
    await claims.finalize(held, request)
    return perf_counter() - began
