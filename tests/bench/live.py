"""The delay of live text, and its cost.

The delay of an answer is from the time at which its first piece leaves the provider until a watcher
has the delta with it. The floor is the time until a caller of the router has the same piece: on the
way to the watcher there are also the runner, a committed row and its notification. Both are measured
in turn, first with ten watchers on the mesh, and then with 490 more. Those are streams of another
client process: ten on each of 49 sessions, whose transcripts together grow by five entries a second.

The cost is processor time for a second of an answer of 50 pieces a second, which one watcher reads.
Its floor is the same answer of a tenant that masks secrets: of that, no text is written before its
end. Both have a share of what the mesh uses without work.
"""

import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

import psycopg
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1.session_pb2 import SESSION_MODE_SESSION
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest, WatchSessionResponse
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.members import Member, Readiness, base_environment
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.impersonation import use_token

from tests.bench.cost import Meters, Used
from tests.bench.harness import AS_DEPLOYED, Bench, Metric, Samples, Work
from tests.bench.live_provider import PIECES_PER_SECOND
from tests.bench.transcript import Transcript, answer, spoken, transcripts

TENANT, MASKED = "bench-live", "bench-live-masked"
TASK = "Say the time."
TELLER, LONG_TELLER = "loopback/teller-6", "loopback/teller-1000"
LONG_SECONDS = 1000 / PIECES_PER_SECOND
MEASURED = 10
OTHERS, WATCHERS_OF_OTHER = 49, 10
GROWTH_PAUSE_SECONDS = 0.2
ROUNDS = 200
WARM_UP = 20
LONG_ANSWERS = 3
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 0.1
"""The run behind an answer has ended, and must not count for the next answer."""
P99_BOUND_MS = 50.0
WRITES_BOUND = 10.5
RATIO_BOUND = 9.0
COST_BOUND = 2.0
IDLE_PAUSE_SECONDS = 3.0
_COSTLY = ("runner", "session", "transcript", "model-router", "postgres")
_WRITTEN = "select n_tup_ins from pg_stat_user_tables where relid = 'transcript.draft_pieces'::regclass"
_STATISTICS_SECONDS = 12.0  # An idle connection reports what it did after ten seconds.
_STREAM_SECONDS = 3600.0
_ANSWER_SECONDS = 60.0


async def run(bench: Bench) -> None:
    """Measure the delay twice, and then the cost, on a mesh with a provider that tells the time."""
    (port,) = free_ports(1)
    environment = {**AS_DEPLOYED, "BENCH_KEY": "any"}
    async with (
        open_stack(
            bench.data_dir / "live", bench.report, router_config=_config(port), environment=environment
        ) as stack,
        AsyncExitStack() as exits,
    ):
        await stack.start(_provider(port))
        async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
            await operator.create_tenant(TENANT)
            masking = TenantSettings(transcripts=TranscriptSettings(mask_secrets=True))
            await operator.create_tenant(MASKED, settings=masking)
        mesh = await exits.enter_async_context(_client(stack, TENANT))
        masked = await exits.enter_async_context(_client(stack, MASKED))
        heard = [await exits.enter_async_context(_conversation(mesh, TELLER)) for _ in range(MEASURED)]
        bench.report(f"live: {MEASURED} watchers, one answer at a time")
        await _delay(bench, "live", mesh, heard)
        async with _other_watchers(bench, stack, mesh):
            await _delay(bench, "live.500_watchers", mesh, heard)
        clear, floor = [
            await exits.enter_async_context(_conversation(one, LONG_TELLER)) for one in (mesh, masked)
        ]
        await _cost(bench, stack, clear, floor)


def _config(port: int) -> dict[str, Any]:
    url = f"http://{LOOPBACK}:{port}/v1"
    provider = {"kind": "openai_compatible", "base_url": url, "credentials": ["env:BENCH_KEY"]}
    size = {"context_window": 1_000_000, "max_output": 65_536}
    models = dict.fromkeys((TELLER, LONG_TELLER), size)
    return {"primary": TELLER, "providers": {"loopback": provider}, "models": models}


def _provider(port: int) -> Member:
    argv = (sys.executable, str(Path(__file__).with_name("live_provider.py")), str(port))
    return Member("bench-provider", argv, base_environment(), Readiness.TCP, port)


def _client(stack: Stack, tenant: str) -> AbstractAsyncContextManager[WireMesh]:
    targets = stack.targets
    return connect_wire(
        session=targets["session"],
        transcript=targets["transcript"],
        model_router=targets["model-router"],
        token=stack.client_token(tenant),
    )


Delays = tuple[float, ...]
"""The seconds by which each piece of an answer was late."""


@dataclass
class Conversation:
    """A session, and its one watcher in this process."""

    mesh: WireMesh
    session_id: str
    _events: "asyncio.Queue[tuple[int, WatchSessionResponse]]" = field(default_factory=asyncio.Queue)

    async def watch(self) -> None:
        """Keep each event with the time at which it came."""
        peer = self.mesh.service("session")
        request = WatchSessionRequest(session_id=self.session_id, with_transcript=True)
        method = SessionServiceStub(peer.channel).WatchSession
        async for event in peer.stream(method, request, timeout_seconds=_STREAM_SECONDS):
            self._events.put_nowait((monotonic_ns(), event))

    async def listen(self) -> None:
        """Send a message, and wait for the answer."""
        await self.answer()

    async def answer(self) -> Delays:
        """Send a message, and return the delays of the answer to it."""
        await self.mesh.send(self.session_id, TASK)
        return await self.hear()

    async def hear(self) -> Delays:
        """Return the delays of the next answer."""
        delays, rest = [], ""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                time, event = await self._events.get()
                if event.HasField("draft_retracted"):
                    raise RuntimeError("an answer broke")
                if event.HasField("draft_delta"):
                    *times, rest = (rest + event.draft_delta.text).split(" ")
                    delays += [(time - int(left)) / 1e9 for left in times]
                elif event.entry_appended.entry.body.message.role == message_pb2.ROLE_ASSISTANT:
                    return tuple(delays)


@asynccontextmanager
async def _conversation(mesh: WireMesh, model: str) -> AsyncIterator[Conversation]:
    """Open a session that has answered once, and watch it."""
    session = await mesh.spawn(TASK, model=model, mode=SESSION_MODE_SESSION)
    conversation = Conversation(mesh, session.session_id)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(conversation.watch())
        await conversation.hear()
        yield conversation
        watching.cancel()


async def _first_piece_of_router(mesh: WireMesh) -> float:
    """Return the seconds by which the first piece of an answer is late for a caller of the router."""
    peer = mesh.service("model-router")
    method = ModelRouterServiceStub(peer.channel).Generate
    said = message_pb2.ContentBlock(text=message_pb2.Text(text=TASK))
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=[said])
    request = router_pb.GenerateRequest(model=TELLER, messages=[message])
    late = None
    async for part in peer.stream(method, request, timeout_seconds=_ANSWER_SECONDS):
        for event in part.events:
            if late is None and event.text_delta.text:
                late = (monotonic_ns() - int(event.text_delta.text.split(" ")[0])) / 1e9
    assert late is not None, "the answer had no text"
    return late


async def _delay(bench: Bench, name: str, mesh: WireMesh, heard: Sequence[Conversation]) -> None:
    """Compare the first piece of an answer at a watcher with that at a caller of the router."""
    conversations = itertools.cycle(heard)
    answers: list[Delays] = []

    async def answered() -> float:
        await asyncio.sleep(SETTLE_SECONDS)
        answers.append(await next(conversations).answer())
        return answers[-1][0]

    async def generated() -> float:
        await asyncio.sleep(SETTLE_SECONDS)
        return await _first_piece_of_router(mesh)

    works: dict[str, Work] = {"floor": generated, "watcher": answered}
    samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    floor, watcher = samples["floor"], samples["watcher"]
    bench.latency(f"{name}.first_delta", watcher, floor, RATIO_BOUND)
    for of, taken, bound in (("router.first_delta", floor, None), ("first_delta", watcher, P99_BOUND_MS)):
        p99, longest = taken.percentile(99) * 1e3, max(taken.seconds) * 1e3
        bench.record(Metric(f"{name}.{of}.p99", p99, "ms", None, None, ROUNDS, bound=bound))
        bench.record(Metric(f"{name}.{of}.longest", longest, "ms", None, None, ROUNDS))
    pieces = [late for one in answers[WARM_UP:] for late in one]
    bench.latency(f"{name}.any_piece", Samples(pieces))


@asynccontextmanager
async def _other_watchers(bench: Bench, stack: Stack, mesh: WireMesh) -> AsyncIterator[None]:
    """Watch other sessions, some of which grow, with many streams of another process.

    At the end, record the streams that broke, and the entries that did not come.
    """
    async with (
        _meters(stack) as meters,
        transcripts(stack, ALWAYS_OFF, TENANT) as begin,
    ):
        others = [await begin(await _ended_run(mesh)) for _ in range(OTHERS)]
        before = await _idle(meters)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.live_watchers"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            given = {
                "session": stack.targets["session"],
                "transcript": stack.targets["transcript"],
                "token": stack.client_token(TENANT),
                "times": {one.session_id: WATCHERS_OF_OTHER for one in others},
            }
            process.stdin.write(json.dumps(given).encode() + b"\n")
            assert await process.stdout.readline() == b"ready\n", "the watchers could not begin"
            after = await _idle(meters)
            _record_idle(bench, before, after)
            count = OTHERS * WATCHERS_OF_OTHER
            bench.report(
                f"live: {MEASURED} watchers, one answer at a time, and {count} watchers of {OTHERS} other "
                f"sessions, to which {1 / GROWTH_PAUSE_SECONDS:g} entries are appended in a second"
            )
            growth = asyncio.create_task(_grow(others))
            try:
                yield
            finally:
                growth.cancel()
                await asyncio.gather(growth, return_exceptions=True)
            wanted = sum([await _entry_count(one) for one in others]) * WATCHERS_OF_OTHER
            printed, _ = await process.communicate(f"{wanted}\n".encode())
            found = json.loads(printed)
            for name, value in (("broken", found["broken"]), ("missing", abs(wanted - found["entries"]))):
                bench.record(Metric(f"live.500_watchers.{name}", value, "", None, None, count, bound=0))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _ended_run(mesh: WireMesh) -> str:
    """Return an open session whose run has ended."""
    session = await mesh.spawn(TASK, model=TELLER, mode=SESSION_MODE_SESSION)
    await mesh.wait(session.session_id, _ANSWER_SECONDS)
    return session.session_id


async def _grow(others: Sequence[Transcript]) -> None:
    body = answer(spoken(200))
    for one in itertools.cycle(others):
        await one.append(body)
        await asyncio.sleep(GROWTH_PAUSE_SECONDS)


async def _entry_count(one: Transcript) -> int:
    request = transcript_pb.ListEntriesRequest(session_id=one.session_id, before_seq=0, page_size=1)
    with use_token(one.token):
        return (await one.peer.unary(one.stub.ListEntries, request)).head.seq


@asynccontextmanager
async def _meters(stack: Stack) -> AsyncIterator[Meters]:
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database:
        yield Meters(stack, database)


async def _idle(meters: Meters) -> Used:
    """Return what a mesh without work uses in a second."""
    await asyncio.sleep(IDLE_PAUSE_SECONDS)
    used = await meters.of(lambda: asyncio.sleep(IDLE_SECONDS))
    cpu = {name: seconds / IDLE_SECONDS for name, seconds in used.cpu_seconds.items()}
    return Used(cpu, used.transactions / IDLE_SECONDS)


def _record_idle(bench: Bench, before: Used, after: Used) -> None:
    more = after.minus(before)
    for process in ("session", "transcript", "postgres"):
        share = more.cpu_seconds[process] * 100
        bench.record(Metric(f"live.500_watchers.idle.cpu.{process}", share, "% of a core", None, None, 1))


async def _written(meters: Meters) -> int:
    """Return the number of rows that drafts have had so far, one for each call that wrote text."""
    await asyncio.sleep(_STATISTICS_SECONDS)
    row = await (await meters.database.execute(_WRITTEN)).fetchone()
    assert row is not None
    return row[0]


async def _cost(bench: Bench, stack: Stack, clear: Conversation, masked: Conversation) -> None:
    """Record the processor time for a second of an answer, and the calls that write its text."""
    bench.report(f"live: answers of {LONG_SECONDS:g} s, {PIECES_PER_SECOND} pieces a second")
    used: dict[str, Counter[str]] = {"clear": Counter(), "masked": Counter()}
    async with _meters(stack) as meters:
        before = await _written(meters)
        for _ in range(LONG_ANSWERS):
            for name, conversation in (("clear", clear), ("masked", masked)):
                used[name].update((await meters.of(conversation.listen)).cpu_seconds)
                await asyncio.sleep(IDLE_PAUSE_SECONDS)
        writes = await _written(meters) - before
    milliseconds = 1e3 / (LONG_ANSWERS * LONG_SECONDS)
    cost, floor = (sum(one.values()) * milliseconds for one in used.values())
    bench.record(Metric("live.answer.cpu", cost, "ms", floor, cost / floor, LONG_ANSWERS, bound=COST_BOUND))
    for process in _COSTLY:
        cost, floor = (one[process] * milliseconds for one in used.values())
        bench.record(Metric(f"live.answer.cpu.{process}", cost, "ms", None, None, LONG_ANSWERS))
        bench.record(Metric(f"live.answer.cpu.{process}.added", cost - floor, "ms", None, None, LONG_ANSWERS))
    rate = writes / (LONG_ANSWERS * LONG_SECONDS)
    bench.record(Metric("live.answer.writes", rate, "1/s", None, None, LONG_ANSWERS, bound=WRITES_BOUND))
