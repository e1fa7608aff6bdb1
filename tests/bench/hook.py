"""The cost of hooks for a finalize: without a plugin, with one, with five, and with one that does
not answer.

A dispatch without a plugin is compared with an RPC to the same service that does nothing. A
dispatch with plugins is compared with the calls of the plugins alone, one after the other, each
with a one-row commit for its delivery.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

from opentelemetry.trace import NoOpTracer
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_AGENT_FINALIZE, BeforeAgentFinalizeEvent
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceStub
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceStub
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack
from spawnmesh_plugin import Handlers, go_on, hook
from spawnmesh_plugin.serving import ALL_TENANTS, plugin_server
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.floors import commit_floor
from tests.bench.harness import Bench, Metric, Samples, Work

ROUNDS = 400
WARM_UP = 40
ADDED_MS_BOUND = 0.3
_ROW = b"x" * 200


@hook("before_agent_finalize")
def judge(event: BeforeAgentFinalizeEvent) -> Any:
    """Return no objection."""
    return go_on()


async def run(bench: Bench) -> None:
    """Measure tenants with no, one and five plugins in turn, and then a plugin that does not
    answer.
    """
    stack = await bench.stack()
    async with AsyncExitStack() as exits:
        peer = await exits.enter_async_context(_peer(stack, "session", stack.targets["hook"]))
        plugin = await exits.enter_async_context(_plugin(stack))
        commit = await exits.enter_async_context(commit_floor(stack.superuser_dsn))
        handler = await exits.enter_async_context(_peer(stack, "hook", plugin))
        tenants = {count: await _tenant(stack, peer, [f"grpc://{plugin}"] * count) for count in (0, 1, 5)}

        minter = TokenMinter("session", stack.keys / "session.pem")
        token = minter.run_token(tenants[0], "ses_bench", "run_bench", 1, 3600)

        async def ask_plugins(count: int) -> None:
            for _ in range(count):
                with impersonate(tenants[count], plugin=f"grpc://{plugin}"):
                    await handler.unary(
                        HookHandlerServiceStub(handler.channel).HandleBeforeAgentFinalize,
                        handler_pb.HandleBeforeAgentFinalizeRequest(event=_event()),
                    )
                await commit(_ROW)

        works: dict[str, Work] = {
            "rpc": lambda: _list_hooks(peer, token),
            "none": lambda: _dispatch(peer, tenants[0]),
            "one_floor": lambda: ask_plugins(1),
            "one": lambda: _dispatch(peer, tenants[1]),
            "five_floor": lambda: ask_plugins(5),
            "five": lambda: _dispatch(peer, tenants[5]),
        }
        samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
        bench.latency("hook.finalize.no_plugin", samples["none"], samples["rpc"])
        _record_added(bench, samples["none"], samples["rpc"])
        bench.latency("hook.finalize.one_plugin", samples["one"], samples["one_floor"])
        bench.latency("hook.finalize.five_plugins", samples["five"], samples["five_floor"])
        await _dead_plugin(bench, stack, peer)


def _record_added(bench: Bench, dispatch: Samples, rpc: Samples) -> None:
    """Record the cost of a dispatch without a plugin beyond the cost of an RPC."""
    added = (dispatch.p50 - rpc.p50) * 1e3
    count = len(dispatch.seconds)
    bench.record(
        Metric("hook.finalize.no_plugin_added", added, "ms", None, None, count, bound=ADDED_MS_BOUND)
    )


async def _dead_plugin(bench: Bench, stack: Stack, peer: Peer) -> None:
    tenant = await _tenant(stack, peer, ["grpc://127.0.0.1:1"])
    for _ in range(5):
        await _dispatch(peer, tenant)
    samples = await bench.compare({"dead": lambda: _dispatch(peer, tenant)}, rounds=100)
    bench.latency("hook.finalize.dead_plugin", samples["dead"])


async def _dispatch(peer: Peer, tenant: str) -> float:
    request = pb.DispatchBeforeAgentFinalizeRequest(event=_event(), request_id="draft")
    stub = HookServiceStub(peer.channel)
    with impersonate(tenant):
        began = perf_counter()
        await peer.unary(stub.DispatchBeforeAgentFinalize, request)
        return perf_counter() - began


async def _list_hooks(peer: Peer, token: str) -> float:
    with use_token(token):
        began = perf_counter()
        await peer.unary(RunHookServiceStub(peer.channel).ListActiveHooks, run_pb.ListActiveHooksRequest())
        return perf_counter() - began


def _event() -> BeforeAgentFinalizeEvent:
    return BeforeAgentFinalizeEvent(
        session_id="ses_bench",
        run_id=f"run_{uuid.uuid4().hex}",
        agent_id="main",
        draft_text="A draft. " * 100,
    )


async def _tenant(stack: Stack, peer: Peer, endpoints: list[str]) -> str:
    tenant = f"bench-hook-{uuid.uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    with use_token(stack.client_token(tenant)):
        for number, endpoint in enumerate(endpoints):
            plugin = pb.Plugin(
                name=f"plugin-{number}",
                endpoint=endpoint,
                hooks=[HOOK_KIND_BEFORE_AGENT_FINALIZE],
                failure_policy=pb.FAILURE_POLICY_OPEN,
                grants=[pb.GRANT_FINALIZE_CONTROL],
            )
            registration = pb.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
            await peer.unary(HookServiceStub(peer.channel).UpdatePlugin, registration)
    return tenant


@asynccontextmanager
async def _peer(stack: Stack, service: str, target: str) -> AsyncIterator[Peer]:
    """Open a connection that calls in the name of a service of the mesh."""
    minter = TokenMinter(service, stack.keys / f"{service}.pem")
    process = Process("bench", ProcessSettings(), minter=minter, verifier=None, tracer=NoOpTracer())
    async with open_peer(process, service, target) as peer:
        yield peer


@asynccontextmanager
async def _plugin(stack: Stack) -> AsyncIterator[str]:
    """Serve a plugin in this process, and yield its endpoint."""
    settings = ProcessSettings(jwks_file=stack.keys / "jwks.json", log_level="error")
    async with start_process("plugin", settings) as process:
        target = f"127.0.0.1:{free_ports(1)[0]}"
        server = plugin_server(process, Handlers([judge]), endpoint=f"grpc://{target}", tenants=ALL_TENANTS)
        server.add_insecure_port(target)
        await server.start()
        try:
            yield target
        finally:
            await server.stop(None)
