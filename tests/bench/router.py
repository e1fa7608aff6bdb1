"""The cost that the router adds to a model call.

The same SDK makes the same call directly and through the router, to a provider that answers at
once. The direct call is not traced, so the routed calls are not traced either. The cost of tracing
is measured separately.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.members import Member, Readiness, process_variables, python_module
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings

from tests.bench.harness import AS_DEPLOYED, Bench, Metric, Samples, Work

TENANT = "bench-router"
ROUNDS = 300
WARM_UP = 40
CONCURRENT = (1, 16, 64)
CALLS = 600
SPREADS = 40
PROVIDER = "loopback"
_SETTLE_SECONDS = 0.03
"""A pause after each call. Background work of a call begins 10 ms later and must not count for the
next call.
"""
UPSTREAM = Path(__file__).parents[1] / "support" / "model_router" / "upstream.py"


async def run(bench: Bench) -> None:
    """Compare single calls, then calls under load, and measure how fast cooldowns spread."""
    stack = await bench.stack()
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    upstream, *ports = free_ports(3)
    config = stack.data_dir / "bench-router.json"
    config.write_text(json.dumps(_config(upstream)))
    members = [_router(stack, f"bench-router-{number}", port, config) for number, port in enumerate(ports, 1)]
    provider = Member(
        "bench-provider",
        (sys.executable, str(UPSTREAM), str(upstream)),
        _plain(stack),
        Readiness.TCP,
        upstream,
    )
    await stack.start(provider, *members)
    client = openai.AsyncOpenAI(api_key="any", base_url=f"http://{LOOPBACK}:{upstream}/v1", max_retries=0)
    async with (
        client,
        _callers(stack, ports, ALWAYS_OFF) as (first, second),
        _callers(stack, ports, ALWAYS_ON) as (traced, _),
    ):
        await _latency(bench, client, first, traced)
        await _rates(bench, client, first)
        await _spread(bench, first, second)


class Caller:
    """A client of one replica."""

    def __init__(self, peer: Peer, token: str, operator: str) -> None:
        self._peer = peer
        self._operator = operator
        self._stub = ModelRouterServiceStub(peer.channel)
        self._token = token

    async def generate(self, model: str, *fallbacks: str) -> str:
        """Return the complete answer, which is the name of the model without its provider."""
        request = pb.GenerateRequest(
            model=f"{PROVIDER}/{model}",
            fallbacks=pb.Fallbacks(models=[f"{PROVIDER}/{one}" for one in fallbacks]),
            messages=[_MESSAGE],
        )
        answered = ""
        with use_token(self._token):
            async for answer in self._peer.stream(self._stub.Generate, request, timeout_seconds=30):
                answered = answer.events[-1].completion.message.model
        return answered.partition("/")[2]

    async def clear(self, model: str) -> None:
        """End the cooldown of the model."""
        request = pb.ClearCooldownRequest(
            scope=routing_pb2.COOLDOWN_SCOPE_MODEL, target=f"{PROVIDER}/{model}"
        )
        with use_token(self._operator):
            await self._peer.unary(self._stub.ClearCooldown, request, timeout_seconds=30)

    async def sees_cooling(self, model: str) -> bool:
        """Return whether this replica skips the model because of its cooldown."""
        request = pb.GenerateRequest(
            model=f"{PROVIDER}/{model}", fallbacks=pb.Fallbacks(), messages=[_MESSAGE]
        )
        asked = pb.ExplainRouteRequest(request=request)
        with use_token(self._token):
            answer = await self._peer.unary(self._stub.ExplainRoute, asked, timeout_seconds=30)
        return answer.candidates[0].verdict == generation_pb2.VERDICT_COOLING


_MESSAGE = message_pb2.Message(
    role=message_pb2.ROLE_USER, content=[message_pb2.ContentBlock(text=message_pb2.Text(text="Say a word."))]
)


async def _latency(bench: Bench, client: openai.AsyncOpenAI, caller: Caller, traced: Caller) -> None:
    await caller.generate("limited-resting", "instant")

    async def settled(before: Awaitable[object], work: Callable[[], Awaitable[object]]) -> float:
        await asyncio.sleep(_SETTLE_SECONDS)
        await before  # The first call after a pause is slower than the others.
        return await _seconds(work())

    async def after_refusal() -> float:
        took = await settled(caller.generate("instant"), lambda: caller.generate("limited", "instant"))
        # Otherwise the candidate is still in cooldown in the next round.
        await caller.clear("limited")
        return took

    async def direct(model: str) -> None:
        await _direct(client, model)

    async def while_cooling() -> None:
        assert await caller.generate("limited-resting", "instant") == "instant"

    at_once = partial(direct, "instant")
    pairs: tuple[tuple[str, Work, Work, float | None], ...] = (
        ("a call", at_once, lambda: _seconds(caller.generate("instant")), 1.0),
        ("a call, traced", at_once, lambda: _seconds(traced.generate("instant")), None),
        ("after a 429", lambda: settled(at_once(), at_once), after_refusal, 2.5),
        ("first is cooling", at_once, while_cooling, 1.5),
        ("100 chunks", partial(direct, "hundred"), lambda: _seconds(caller.generate("hundred")), 5.0),
    )
    # Each kind in a row: with five kinds in turn, the caches would be cold for each.
    for name, floor, routed, bound in pairs:
        works: dict[str, Work] = {"direct": floor, "routed": routed}
        taken = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
        bench.latency(f"router direct call: {name}", taken["direct"])
        _record_added(bench, name, taken["routed"], taken["direct"], bound)
    both = await bench.compare(
        {"direct": lambda: _direct_after_refusal(client)}, rounds=ROUNDS, warm_up=WARM_UP
    )
    bench.latency("router direct call, and a refused one before it", both["direct"])


def _record_added(bench: Bench, name: str, taken: Samples, floor: Samples, bound: float | None) -> None:
    """Record what is added to the median and to the 99th percentile of the floor."""
    for percent, most in ((50, bound), (99, None)):
        added = (taken.percentile(percent) - floor.percentile(percent)) * 1e3
        metric = Metric(
            f"router added p{percent}: {name}", added, "ms", None, None, len(taken.seconds), bound=most
        )
        bench.record(metric)


async def _rates(bench: Bench, client: openai.AsyncOpenAI, caller: Caller) -> None:
    for many in CONCURRENT:
        direct = await _rate(lambda: _direct(client, "instant"), many)
        routed = await _rate(lambda: caller.generate("instant"), many)
        bench.record(
            Metric(f"router calls a second, {many} at once", routed, "/s", direct, routed / direct, CALLS)
        )


async def _rate(call: Callable[[], Awaitable[Any]], many: int) -> float:
    left = iter(range(CALLS))

    async def worker() -> None:
        for _ in left:
            await call()

    await call()
    began = perf_counter()
    await asyncio.gather(*(worker() for _ in range(many)))
    return CALLS / (perf_counter() - began)


async def _spread(bench: Bench, first: Caller, second: Caller) -> None:
    """Measure the time from the answer that starts a cooldown until the other replica knows of it."""
    seconds = []
    for _ in range(SPREADS):
        await first.clear("limited")
        while await second.sees_cooling("limited"):
            await asyncio.sleep(_SETTLE_SECONDS)
        await first.generate("limited", "instant")
        began = perf_counter()
        while not await second.sees_cooling("limited"):
            assert perf_counter() - began < 5, "the other replica never knew"
        seconds.append(perf_counter() - began)
    samples = Samples(seconds)
    slowest = Metric(
        "router cooldown seen by another replica, slowest",
        max(seconds) * 1e3,
        "ms",
        None,
        None,
        SPREADS,
        bound=200,
    )
    bench.latency("router cooldown seen by another replica", samples)
    bench.record(slowest)


async def _seconds(call: Awaitable[Any]) -> float:
    began = perf_counter()
    await call
    return perf_counter() - began


async def _direct(client: openai.AsyncOpenAI, model: str) -> float:
    """Make the call that the router makes, with the same SDK."""
    began = perf_counter()
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say a word."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async with stream:
        async for _ in stream:
            pass
    return perf_counter() - began


async def _direct_after_refusal(client: openai.AsyncOpenAI) -> float:
    began = perf_counter()
    try:
        await _direct(client, "limited")
    except openai.RateLimitError:
        await _direct(client, "instant")
    return perf_counter() - began


def _config(upstream: int) -> dict[str, Any]:
    names = ["instant", "hundred", "limited", "limited-resting"]
    size = {"context_window": 128_000, "max_output": 4096}
    url = f"http://{LOOPBACK}:{upstream}/v1"
    return {
        "primary": f"{PROVIDER}/instant",
        "providers": {
            PROVIDER: {"kind": "openai_compatible", "base_url": url, "credentials": ["env:BENCH_KEY"]}
        },
        "models": {f"{PROVIDER}/{name}": size for name in names},
    }


def _router(stack: Stack, name: str, port: int, config: Path) -> Member:
    """Describe a replica beside the replica of the mesh, with its database and its trace sink."""
    env = {
        **process_variables("model-router", port, stack.keys, stack.otlp_endpoint),
        **AS_DEPLOYED,
        "MODEL_ROUTER_DATABASE_URL": stack.databases["model_router"].app,
        "MODEL_ROUTER_CONFIG_FILE": str(config),
        "MODEL_ROUTER_TRACE_PARENT_ISSUERS": '["client"]',  # The callers decide which calls are recorded.
        "BENCH_KEY": "any",
    }
    return Member(name, python_module("spawnmesh_model_router", "serve"), env, Readiness.GRPC, port)


def _plain(stack: Stack) -> dict[str, str]:
    return {
        name: value for name, value in process_variables("", None, stack.keys, "").items() if name == "PATH"
    }


@asynccontextmanager
async def _callers(stack: Stack, ports: list[int], sampler: Sampler) -> AsyncIterator[tuple[Caller, Caller]]:
    """Open clients whose calls the router records, or does not record. The clients send no spans."""
    tracer = TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("bench")
    process = Process("bench", ProcessSettings(), minter=None, verifier=None, tracer=tracer)
    token, operator = stack.client_token(TENANT), stack.admin_token()
    first, second = (f"{LOOPBACK}:{port}" for port in ports)
    async with (
        open_peer(process, "model-router", first) as one,
        open_peer(process, "model-router", second) as two,
    ):
        yield Caller(one, token, operator), Caller(two, token, operator)
