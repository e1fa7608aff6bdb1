"""The context of a long transcript, with and without references in place of large results, and the
cost of assembling it.

The transcripts are histories of a coding agent: see tests/support/transcript/coding_histories.py.
The share of the results in what is read decides what references can save. It is therefore reported
beside the number of items.

Two thousand messages are appended through the service, with their blobs. Longer transcripts repeat
them: they are copied in the database, since old entries are not read. Both ways are measured on the
same transcript, turn by turn.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter

import psycopg
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from psycopg import sql
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.harness import Bench, Metric, Samples
from tests.support import tenancy
from tests.support.transcript.coding_histories import CodingHistory

TENANT = "bench-context"
BUDGET = 258_000
APPENDED = 2_000
LENGTHS = (APPENDED, 6_804, 20_000, 200_000)
ROUNDS = 40
WARM_UP = 5
TURNS = 60
TURNS_LENGTH = 6_804
LATENCY_BOUND_MS = 30.0  # Without references. With them a context has three times as many items.
ITEM_BOUND = 1.5  # The time for each item with references, by the time without.
GROWTH_BOUND = 1.3
ITEMS_BOUND = 0.5  # Items without references by items with them: at least twice as many with them.

MODELS = {"gpt": "openai/gpt-5", "claude": "anthropic/claude-sonnet-4-5"}

_COPIED = ("entries", "stubs", "payloads")


@dataclass
class Conversation:
    """The transcript of one session, to which turns of the mix are appended."""

    peer: Peer
    minter: TokenMinter
    session_id: str = field(default_factory=lambda: new_id(IdKind.SESSION))
    run_id: str = field(default_factory=lambda: new_id(IdKind.RUN))

    @property
    def claim(self) -> pb.WriterClaim:
        return pb.WriterClaim(run_id=self.run_id, epoch=1)

    @property
    def stub(self) -> TranscriptServiceStub:
        return TranscriptServiceStub(self.peer.channel)

    def token(self) -> str:
        return self.minter.run_token(TENANT, self.session_id, self.run_id, 1, 3600)

    async def begin(self) -> None:
        """Create the transcript and acquire its writer."""
        with impersonate(TENANT):
            await self.peer.unary(
                self.stub.CreateTranscript, pb.CreateTranscriptRequest(session_id=self.session_id)
            )
        with use_token(self.token()):
            request = pb.AcquireWriterRequest(session_id=self.session_id, claim=self.claim)
            await self.peer.unary(self.stub.AcquireWriter, request)

    async def append(self, bodies: Sequence[entry_pb2.EntryBody]) -> None:
        """Append all bodies in one call."""
        request = pb.AppendEntriesRequest(
            session_id=self.session_id, claim=self.claim, request_id=new_id(IdKind.ENTRY), entries=bodies
        )
        with use_token(self.token()):
            await self.peer.unary(self.stub.AppendEntries, request, timeout_seconds=60)

    async def assemble(self, model: str = "") -> tuple[pb.AssembleContextResponse, float]:
        """Return the context, and the seconds that the call took."""
        request = pb.AssembleContextRequest(session_id=self.session_id, token_budget=BUDGET, model=model)
        with use_token(self.token()):
            began = perf_counter()
            context = await self.peer.unary(self.stub.AssembleContext, request, timeout_seconds=60)
            return context, perf_counter() - began


@dataclass
class Tier:
    """The setting of the tenant that turns references on and off."""

    peer: Peer
    version: int = 0

    async def turn(self, *, is_on: bool) -> None:
        self.version += 1
        settings = TranscriptSettings(stub_large_tool_payloads=is_on)
        with impersonate(TENANT):
            await tenancy.prepare(self.peer, self.version, transcripts=settings)


async def run(bench: Bench) -> None:
    """Measure the latency at each length, then turn by turn."""
    stack = await bench.stack()
    async with _opened(stack) as (first, tier):
        mix = iter(CodingHistory())
        bench.report(f"appending {APPENDED} messages")
        await first.begin()
        await _keep_inline(stack, first)
        await _grow(first, mix, APPENDED)
        await _told_share(bench, stack, first)
        conversations = {length: await _longer(stack, first, length) for length in LENGTHS}
        await _latency(bench, conversations, tier)
        await _turns(bench, conversations[TURNS_LENGTH], tier, mix)


@asynccontextmanager
async def _opened(stack: Stack) -> AsyncIterator[tuple[Conversation, Tier]]:
    minter = TokenMinter("session", stack.keys / "session.pem")
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("bench")
    process = Process("bench", ProcessSettings(), minter=minter, verifier=None, tracer=tracer)
    async with (
        open_peer(process, "transcript", stack.targets["transcript"]) as peer,
        open_peer(process, "attachment-blob", stack.targets["attachment-blob"]) as blobs,
    ):
        with impersonate(TENANT):
            await tenancy.prepare(blobs, 1)
        tier = Tier(peer)
        await tier.turn(is_on=True)
        yield Conversation(peer, minter), tier


async def _grow(conversation: Conversation, mix: Iterator[list[entry_pb2.EntryBody]], count: int) -> None:
    waiting: list[entry_pb2.EntryBody] = []
    while count > 0:
        waiting += next(mix)
        if len(waiting) >= min(100, count):
            await conversation.append(waiting)
            count -= len(waiting)
            waiting = []


async def _keep_inline(stack: Stack, conversation: Conversation) -> None:
    """Keep the worker from dropping inline copies: copied rows name blobs that do not exist."""
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as link:
        await link.execute(
            "update transcript.transcripts set inline_dropped_seq = 1000000000"
            " where tenant_id = %s and session_id = %s",
            (TENANT, conversation.session_id),
        )


async def _longer(stack: Stack, source: Conversation, length: int) -> Conversation:
    """Return a transcript of this length that ends as the source does.

    The messages of the source are repeated before its end.
    """
    if length == APPENDED:
        return source
    longer = Conversation(source.peer, source.minter)
    await longer.begin()
    await _keep_inline(stack, longer)
    async with await psycopg.AsyncConnection.connect(
        stack.superuser_dsn, options="-c search_path=transcript"
    ) as link:
        key = {"tenant": TENANT, "source": source.session_id, "longer": longer.session_id}
        row = await (
            await link.execute(
                "select seq from transcripts where tenant_id = %(tenant)s and session_id = %(source)s", key
            )
        ).fetchone()
        assert row is not None
        messages = row[0] - 1
        copies = -(-length // messages)
        skipped = copies * messages - length  # Skipped messages of the first copy.
        for copy in range(copies):
            shift = {**key, "shift": copy * messages - skipped, "copy": f"{copy:03d}"}
            for table in _COPIED:
                await link.execute(await _copying(link, table), shift)
        await link.execute(
            "update transcripts set (seq, turn_count, token_count) = (select max(seq), count(*) filter (where kind = 'MESSAGE'),"
            " sum(token_count) from entries where tenant_id = %(tenant)s and session_id = %(longer)s)"
            " where tenant_id = %(tenant)s and session_id = %(longer)s",
            key,
        )
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as link:
        await link.execute("vacuum analyze transcript.entries")
    return longer


async def _copying(link: psycopg.AsyncConnection[tuple[object, ...]], table: str) -> sql.Composed:
    """Return the statement that copies the rows of the source except its header, with new seqs and
    ids.
    """
    cursor = await link.execute(sql.SQL("select * from {} limit 0").format(sql.Identifier(table)))
    names = [column.name for column in cursor.description or ()]
    changed = {
        "session_id": sql.SQL("%(longer)s"),
        "seq": sql.SQL("seq + %(shift)s"),
        "entry_id": sql.SQL("overlay(entry_id placing %(copy)s || left(md5(%(longer)s), 8) from 5)"),
        "file_id": sql.SQL("file_id || case file_id when '' then '' else %(copy)s || %(longer)s end"),
        "blob_id": sql.SQL("overlay(blob_id placing %(copy)s || left(md5(%(longer)s), 8) from 5)"),
    }
    values = [changed.get(name, sql.Identifier(name)) for name in names]
    return sql.SQL(
        "insert into {table} ({names}) select {values} from {table}"
        " where tenant_id = %(tenant)s and session_id = %(source)s and seq > 1 and seq + %(shift)s > 1"
    ).format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        values=sql.SQL(", ").join(values),
    )


async def _told_share(bench: Bench, stack: Stack, conversation: Conversation) -> None:
    statement = (
        "select sum(token_count) filter (where role = 'TOOL_RESULT')::float / sum(token_count) from transcript.entries"
        " where tenant_id = %s and session_id = %s"
    )
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as link:
        row = await (await link.execute(statement, (TENANT, conversation.session_id))).fetchone()
    assert row is not None
    bench.record(Metric("context.tool_share", row[0] * 100, "%", None, None, APPENDED))


async def _latency(bench: Bench, conversations: dict[int, Conversation], tier: Tier) -> None:
    """Compare contexts with and without references at each length."""
    per_item: dict[str, float] = {}  # Seconds at 20,000 messages.
    for is_on in (False, True):
        await tier.turn(is_on=is_on)
        name = "on" if is_on else "off"
        seconds: dict[int, list[float]] = {length: [] for length in conversations}
        contexts: dict[int, pb.AssembleContextResponse] = {}
        for number in range(-WARM_UP, ROUNDS):
            for length, conversation in conversations.items():
                contexts[length], took = await conversation.assemble()
                if number >= 0:
                    seconds[length].append(took)
        shortest = Samples(seconds[LENGTHS[0]])
        for length, context in contexts.items():
            samples = Samples(seconds[length])
            count = len(samples.seconds)
            bound = LATENCY_BOUND_MS if length == 20_000 and not is_on else None
            if length == 20_000:
                per_item[name] = samples.p50 / len(context.entries)
            bench.record(Metric(f"context.{name}.{length}.items", len(context.entries), "", None, None, 1))
            bench.record(
                Metric(
                    f"context.{name}.{length}.tokens", context.token_count, "", None, None, 1, bound=BUDGET
                )
            )
            bench.record(
                Metric(
                    f"context.{name}.{length}.p50",
                    samples.p50 * 1e3,
                    "ms",
                    None,
                    None,
                    count,
                    samples.p95 * 1e3,
                    bound,
                )
            )
            bench.record(
                Metric(f"context.{name}.{length}.p99", samples.percentile(99) * 1e3, "ms", None, None, count)
            )
            if length == LENGTHS[-1]:
                bench.latency(f"context.{name}.growth_to_{length}", samples, shortest, GROWTH_BOUND)
    on, off = per_item["on"], per_item["off"]
    bench.record(
        Metric("context.on.20000.per_item", on * 1e3, "ms", off * 1e3, on / off, ROUNDS, None, ITEM_BOUND)
    )


async def _turns(
    bench: Bench, conversation: Conversation, tier: Tier, mix: Iterator[list[entry_pb2.EntryBody]]
) -> None:
    """Record the number of items as a conversation goes on, and the share of the bytes of a context
    with which the next one begins.
    """
    items: dict[str, dict[bool, list[int]]] = {name: {False: [], True: []} for name in MODELS}
    kept: dict[bool, list[float]] = {False: [], True: []}
    shares: dict[bool, list[float]] = {False: [], True: []}
    earlier: dict[bool, list[bytes]] = {}
    for _ in range(TURNS):
        await tier.turn(is_on=True)
        await conversation.append(next(mix))
        for is_on in (True, False):
            await tier.turn(is_on=is_on)
            for name, model in MODELS.items():
                context, _seconds = await conversation.assemble(model)
                items[name][is_on].append(len(context.entries))
            context, _seconds = await conversation.assemble()
            entries = [entry.body.SerializeToString(deterministic=True) for entry in context.entries]
            shares[is_on].append(_tool_share(context))
            if is_on in earlier:
                kept[is_on].append(_kept(earlier[is_on], entries))
            earlier[is_on] = entries
    for is_on, name in ((False, "off"), (True, "on")):
        bench.record(
            Metric(f"context.{name}.prefix_kept", mean(kept[is_on]) * 100, "%", None, None, len(kept[is_on]))
        )
        bench.record(
            Metric(f"context.{name}.tool_share_of_turns", mean(shares[is_on]) * 100, "%", None, None, TURNS)
        )
    for name, counts in items.items():
        for is_on, setting in ((False, "off"), (True, "on")):
            bench.record(
                Metric(f"context.{setting}.{name}.items_of_turns", mean(counts[is_on]), "", None, None, TURNS)
            )
        ratio = sum(counts[False]) / sum(counts[True])
        bench.record(
            Metric(f"context.{name}.items_off_by_on", ratio, "", None, None, TURNS, bound=ITEMS_BOUND)
        )


def _tool_share(context: pb.AssembleContextResponse) -> float:
    """Return the share of tool results in the stored tokens of what was read."""
    full = {stubbed.seq: stubbed.full_token_count for stubbed in context.stubbed}
    counts = [(entry.body.message.role, full.get(entry.seq, entry.token_count)) for entry in context.entries]
    return sum(count for role, count in counts if role == content_pb.ROLE_TOOL_RESULT) / sum(
        count for _, count in counts
    )


def _kept(earlier: Sequence[bytes], entries: Sequence[bytes]) -> float:
    same = 0
    for one, other in zip(earlier, entries, strict=False):
        if one != other:
            break
        same += len(one)
    return same / sum(map(len, earlier))
