"""The cost of an append and of closing a prompt window, against an RPC that commits one row; and
the space that transcripts take on disk.

There are two floors. The same client calls them with the same token as it calls the service: a row
of the same bytes, as many connections, the same database with the same durability.

- One floor is an RPC of the mesh. It pays what each RPC pays: the checks of the token and of the
  request, the log record, the pool, the scope of the tenant. Bounds are over this floor. Above it,
  an append pays for redaction, token counts, the claim, the key, the hash chain and row-level
  security.
- The other floor is answered by a bare server. It has no bound.

Tracing has a cost and a bound of its own.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from psycopg import sql
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.floors import COMMIT, commit_server
from tests.bench.harness import Bench, Metric, Work
from tests.bench.one_row import one_row_server

if TYPE_CHECKING:
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub

TENANT = "bench-transcript"
KIB = 1024
ROUNDS = 400
WARM_UP = 50
RATE_SECONDS = 2.0
RATE_TURNS = 3
TRACING_SECONDS = 1.0
# Many short turns: the rates of two turns differ by a sixth, which is as much as tracing may cost.
TRACING_TURNS = 15
HISTORIES = (100, 10_000, 200_000)
WINDOWS = (0, 1, 10, 100)
APPEND_BOUND = 1.5
RATE_BOUND = 2.0  # The rate of the floor by the rate of appends: at least half of it.
FLAT_BOUND = 1.3
WRITERS_BOUND_PER_SECOND = 500.0
STORED_BOUND = 2.5
TRACING_BOUND = 1 / 0.85  # Tracing takes at most 15 % of the rate.
SAID = (
    "the session keeps what was said and done so that another worker can go on from there when this one is lost a tool reads or writes"
    " files and its result comes back to the model which asks for more or answers the user in plain words about what it found and why "
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of one session, with the claim of its writer."""

    peer: Peer
    stub: "TranscriptServiceAsyncStub"
    session_id: str
    claim: pb.WriterClaim
    token: str

    async def append(self, *bodies: entry_pb2.EntryBody) -> None:
        """Append all bodies in one call."""
        request = pb.AppendEntriesRequest(
            session_id=self.session_id, claim=self.claim, request_id=uuid.uuid4().hex, entries=bodies
        )
        with use_token(self.token):
            await self.peer.unary(self.stub.AppendEntries, request, timeout_seconds=60)

    async def grow(self, count: int) -> None:
        """Append so many small entries."""
        small = answer("word")
        for start in range(0, count, 250):
            await self.append(*[small] * min(250, count - start))

    async def open_window(self) -> pb.Fence:
        """Return the fence at the head."""
        request = pb.OpenWindowRequest(session_id=self.session_id, claim=self.claim)
        with use_token(self.token):
            return (await self.peer.unary(self.stub.OpenWindow, request)).fence

    async def close_window(self, fence: pb.Fence) -> None:
        """Close the window that begins at the fence."""
        request = pb.CloseWindowRequest(session_id=self.session_id, claim=self.claim, fence=fence)
        with use_token(self.token):
            await self.peer.unary(self.stub.CloseWindow, request)


Begin = Callable[..., Awaitable[Transcript]]
"""Begin a transcript without a session, or become the writer of a session's."""

_ABOVE_EVERY_RUN = 1000  # An epoch.


async def run(bench: Bench) -> None:
    """Compare appends with commits, then measure prompt windows, then the space on disk."""
    stack = await bench.stack()
    async with (
        transcripts(stack, ALWAYS_OFF) as begin,
        transcripts(stack, ALWAYS_ON) as begin_traced,
        _floors(stack, begin) as floors,
    ):
        kib = answer(spoken(KIB))
        await _append_latency(bench, begin, floors, kib)
        for count in (1, 16, 64):
            await _append_rate(bench, begin, floors, kib, count)
        await _tracing(bench, begin, begin_traced, kib)
        await _eight_writers(bench, begin, kib)
        await _histories(bench, begin, kib)
        await _stored(bench, begin, stack.superuser_dsn)


def answer(text: str) -> entry_pb2.EntryBody:
    """Build an answer of a model."""
    block = content_pb.ContentBlock(text=content_pb.Text(text=text))
    return entry_pb2.EntryBody(message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[block]))


def spoken(size: int) -> str:
    """Return plain words of this size, as most messages have."""
    return (SAID * (1 + size // len(SAID)))[:size]


def text_of(size: int, turn: int = 0) -> str:
    """Return numbers that differ for each turn and can hardly be compressed."""
    words = (f"{(number * 7919 + turn * 104_729) % 99_991:x}" for number in range(size // 4))
    return " ".join(words)[:size]


@asynccontextmanager
async def transcripts(stack: Stack, sampler: Sampler, tenant_id: str = TENANT) -> AsyncIterator[Begin]:
    """Open transcripts for callers whose traces the service records, or does not record. This
    process sends no spans.
    """
    minter = TokenMinter("session", stack.keys / "session.pem")
    tracer = TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("bench")
    process = Process("bench", ProcessSettings(), minter=minter, verifier=None, tracer=tracer)
    async with open_peer(process, "transcript", stack.targets["transcript"]) as peer:
        stub: TranscriptServiceAsyncStub = TranscriptServiceStub(peer.channel)

        async def begin(known_session_id: str = "") -> Transcript:
            session_id = known_session_id or new_id(IdKind.SESSION)
            claim = pb.WriterClaim(
                run_id=new_id(IdKind.RUN), epoch=_ABOVE_EVERY_RUN if known_session_id else 1
            )
            if not known_session_id:
                with impersonate(tenant_id):
                    await peer.unary(stub.CreateTranscript, pb.CreateTranscriptRequest(session_id=session_id))
            token = minter.run_token(tenant_id, session_id, claim.run_id, claim.epoch, 3600)
            with use_token(token):
                await peer.unary(
                    stub.AcquireWriter, pb.AcquireWriterRequest(session_id=session_id, claim=claim)
                )
            return Transcript(peer, stub, session_id, claim, token)

        yield begin


@dataclass(frozen=True, slots=True)
class Floors:
    """Commit a body as one row, in the way of an append: by an RPC of the mesh, and at a bare
    server.
    """

    rpc: Callable[[entry_pb2.EntryBody], Awaitable[None]]
    bare: Callable[[entry_pb2.EntryBody], Awaitable[None]]


@asynccontextmanager
async def _floors(stack: Stack, begin: Begin) -> AsyncIterator[Floors]:
    caller = await begin()
    process = caller.peer.process
    async with (
        commit_server(stack.superuser_dsn) as bare_target,
        open_peer(process, "floor", bare_target) as bare,
        one_row_server(stack) as target,
        open_peer(process, "floor", target) as peer,
    ):
        method = bare.channel.unary_unary(COMMIT, entry_pb2.EntryBody.SerializeToString, bytes)
        stub: TranscriptServiceAsyncStub = TranscriptServiceStub(peer.channel)

        async def commit(body: entry_pb2.EntryBody) -> None:
            with use_token(caller.token):
                await bare.unary(method, body, timeout_seconds=60)

        yield Floors(replace(caller, peer=peer, stub=stub).append, commit)


async def _append_latency(bench: Bench, begin: Begin, floors: Floors, kib: entry_pb2.EntryBody) -> None:
    transcript = await begin()
    works: dict[str, Work] = {
        "bare": lambda: floors.bare(kib),
        "rpc": lambda: floors.rpc(kib),
        "append": lambda: transcript.append(kib),
    }
    samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    bench.latency("transcript.append.1KiB", samples["append"], samples["rpc"], APPEND_BOUND)
    bench.latency("transcript.append.1KiB.over_bare_server", samples["append"], samples["bare"])
    bench.latency("transcript.one_row.1KiB.over_bare_server", samples["rpc"], samples["bare"])


async def _append_rate(
    bench: Bench, begin: Begin, floors: Floors, kib: entry_pb2.EntryBody, count: int
) -> None:
    """Measure sessions that each append one entry after the other.

    The floors take turns with them, so that a change of the machine's speed affects all.
    """
    works: dict[str, list[Callable[[], Awaitable[None]]]] = {
        "bare": [partial(floors.bare, kib)] * count,
        "rpc": [partial(floors.rpc, kib)] * count,
        "append": [_appending(await begin(), kib) for _ in range(count)],
    }
    turns = [{name: await rate_of(work) for name, work in works.items()} for _ in range(RATE_TURNS)]
    bare, rpc, rate = (sorted(turn[name] for turn in turns)[RATE_TURNS // 2] for name in works)
    samples = round(sum(turn["append"] for turn in turns) * RATE_SECONDS)
    name = f"transcript.append.{count}_sessions"
    bench.record(Metric(f"{name}.rate", rate, "1/s", rpc, rate / rpc, samples))
    bound = (
        RATE_BOUND if count == 16 else None
    )  # The cost of an entry, since a bound is the highest allowed ratio.
    bench.record(Metric(f"{name}.price", 1e3 / rate, "ms", 1e3 / rpc, rpc / rate, samples, bound=bound))
    bench.record(Metric(f"{name}.price.over_bare_server", 1e3 / rate, "ms", 1e3 / bare, bare / rate, samples))


def _appending(transcript: Transcript, body: entry_pb2.EntryBody) -> Callable[[], Awaitable[None]]:
    return lambda: transcript.append(body)


async def rate_of(works: Sequence[Callable[[], Awaitable[object]]], seconds: float = RATE_SECONDS) -> float:
    """Repeat each work for so many seconds and return how many were done in a second."""
    done = 0
    began = perf_counter()

    async def again(work: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while perf_counter() - began < seconds:
            await work()
            done += 1

    await asyncio.gather(*map(again, works))
    return done / (perf_counter() - began)


async def _tracing(bench: Bench, begin: Begin, begin_traced: Begin, kib: entry_pb2.EntryBody) -> None:
    """Compare the same appends, all traced and none traced."""
    untraced = [_appending(await begin(), kib) for _ in range(16)]
    traced = [_appending(await begin_traced(), kib) for _ in range(16)]
    turns = [
        (await rate_of(untraced, TRACING_SECONDS), await rate_of(traced, TRACING_SECONDS))
        for _ in range(TRACING_TURNS)
    ]
    floor_rate, rate = (sum(rates) / TRACING_TURNS for rates in zip(*turns, strict=True))
    samples = round(rate * TRACING_TURNS * TRACING_SECONDS)
    name = "transcript.append.traced.price"
    bench.record(
        Metric(name, 1e3 / rate, "ms", 1e3 / floor_rate, floor_rate / rate, samples, bound=TRACING_BOUND)
    )


async def _eight_writers(bench: Bench, begin: Begin, kib: entry_pb2.EntryBody) -> None:
    transcript = await begin()
    rate = await rate_of([_appending(transcript, kib)] * 8)
    samples = round(rate * RATE_SECONDS)
    bench.record(Metric("transcript.append.8_writers.rate", rate, "1/s", None, None, samples))
    price = Metric(
        "transcript.append.8_writers.price",
        1e3 / rate,
        "ms",
        None,
        None,
        samples,
        bound=1e3 / WRITERS_BOUND_PER_SECOND,
    )
    bench.record(price)


async def _histories(bench: Bench, begin: Begin, kib: entry_pb2.EntryBody) -> None:
    """Measure appends to transcripts of each length. The longest one is also used for the windows."""
    transcripts = {length: await begin() for length in HISTORIES}
    for length, transcript in transcripts.items():
        bench.report(f"  a history of {length} entries")
        await transcript.grow(length - 1)
    works: dict[str, Work] = {
        str(length): _appending(transcript, kib) for length, transcript in transcripts.items()
    }
    samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    shortest = samples[str(HISTORIES[0])]
    for length in HISTORIES:
        bound = FLAT_BOUND if length != HISTORIES[0] else None
        bench.latency(f"transcript.append.after_{length}", samples[str(length)], shortest, bound)
    short = await begin()
    await short.grow(999)
    await _windows(bench, short, transcripts[HISTORIES[-1]])


async def _windows(bench: Bench, short: Transcript, long: Transcript) -> None:
    for count in WINDOWS:
        fences = {name: await one.open_window() for name, one in (("short", short), ("long", long))}
        for transcript in (short, long):
            if count:
                await transcript.append(*[answer("word")] * count)
        works: dict[str, Work] = {
            "short": partial(short.close_window, fences["short"]),
            "long": partial(long.close_window, fences["long"]),
        }
        samples = await bench.compare(works, rounds=ROUNDS // 2, warm_up=WARM_UP)
        bench.latency(f"transcript.close_window.{count}_since.after_1000", samples["short"])
        name = f"transcript.close_window.{count}_since.after_{HISTORIES[-1]}"
        bench.latency(name, samples["long"], samples["short"], FLAT_BOUND)


async def _stored(bench: Bench, begin: Begin, superuser_dsn: str) -> None:
    """Measure the space of transcripts of 200 turns: a question, a call with its result, an answer.

    There are several transcripts, since tables grow by whole pages.
    """
    before = await _disk_bytes(superuser_dsn)
    logical = 0
    transcripts = 8
    for number in range(transcripts):
        transcript = await begin()
        for turn in range(200):
            bodies = _turn(number * 200 + turn)
            logical += sum(body.ByteSize() for body in bodies)
            for body in bodies:
                await transcript.append(body)
    ratio = (await _disk_bytes(superuser_dsn) - before) / logical
    name = "transcript.stored_by_logical.200_turns"
    bench.record(Metric(name, ratio, "", None, None, transcripts, bound=STORED_BOUND))


def _turn(number: int) -> list[entry_pb2.EntryBody]:
    call_id = f"call_{number}"
    block = (
        f'{{"type":"toolCall","id":"{call_id}","name":"read","arguments":{{"path":"{text_of(60, number)}"}}}}'
    )
    call = content_pb.ContentBlock(
        tool_call=content_pb.ToolCall(tool_call_id=call_id, name="read", block_json=block)
    )
    calling = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call])
    read = content_pb.ContentBlock(text=content_pb.Text(text=text_of(3 * KIB, number)))
    result = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT, tool_call_id=call_id, tool_name="read", content=[read]
    )
    return [
        answer(text_of(300, number)),
        entry_pb2.EntryBody(message=calling),
        entry_pb2.EntryBody(message=result),
        answer(text_of(800, number + 1)),
    ]


async def _disk_bytes(superuser_dsn: str) -> int:
    """Return the bytes of the schema with its indexes, after a vacuum."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as connection:
        listed = await connection.execute("select tablename from pg_tables where schemaname = 'transcript'")
        for (table,) in await listed.fetchall():
            await connection.execute(sql.SQL("vacuum transcript.{}").format(sql.Identifier(table)))
        cursor = await connection.execute(
            "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = 'transcript' and c.relkind = 'r'"
        )
        row = await cursor.fetchone()
        return int(row[0]) if row else 0
