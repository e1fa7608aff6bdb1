"""A second process for the same service: contexts a second of two replicas of transcript, against
one of them.

A context costs the service far more than its caller and PostgreSQL, so this shows what a process
adds if it has a core of its own. Both have the history of a coding agent and the same callers, in
turn. All share the cores of the machine.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.context import TENANT, Conversation
from tests.bench.harness import AS_DEPLOYED, Bench, Metric
from tests.bench.transcript import rate_of
from tests.support import tenancy
from tests.support.transcript.coding_histories import CodingHistory

MESSAGES = 600
CALLERS = 8
TURNS = 5
SECONDS = 3.0
SERVICE = "transcript"


async def run(bench: Bench) -> None:
    """Measure one replica and both, in turn."""
    folder = bench.data_dir.with_name("replicas")
    async with open_stack(folder, bench.report, replicas=2, environment=AS_DEPLOYED) as stack:
        process = _process(stack)
        minter = TokenMinter("session", stack.keys / "session.pem")
        async with (
            open_peer(process, SERVICE, _first_of(stack.targets[SERVICE])) as one,
            open_peer(process, SERVICE, stack.targets[SERVICE]) as both,
            open_peer(process, "attachment-blob", stack.targets["attachment-blob"]) as blobs,
        ):
            with impersonate(TENANT):
                await tenancy.prepare(blobs, 1)
                await tenancy.prepare(both, 1)
            written = await _written(both, minter)
            peers = {"one": one, "both": both}
            rates: dict[str, list[float]] = {name: [] for name in peers}
            for number in range(-1, TURNS):
                for name, peer in peers.items():
                    rate = await _rate(peer, minter, written)
                    if number >= 0:
                        rates[name].append(rate)
    least, most = median(rates["one"]), median(rates["both"])
    bench.record(Metric("replicas.one.contexts", least, "1/s", None, None, TURNS))
    bench.record(Metric("replicas.two.contexts", most, "1/s", least, most / least, TURNS))


def _process(stack: Stack) -> Process:
    minter = TokenMinter("session", stack.keys / "session.pem")
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("bench")
    return Process("bench", ProcessSettings(), minter=minter, verifier=None, tracer=tracer)


def _first_of(target: str) -> str:
    return target.removeprefix("ipv4:").partition(",")[0]


async def _written(peer: Peer, minter: TokenMinter) -> Conversation:
    """Return a transcript with so many messages."""
    conversation, mix = Conversation(peer, minter), iter(CodingHistory())
    await conversation.begin()
    count = 0
    while count < MESSAGES:
        bodies = next(mix)
        await conversation.append(bodies)
        count += len(bodies)
    return conversation


async def _rate(peer: Peer, minter: TokenMinter, written: Conversation) -> float:
    reader = Conversation(peer, minter, written.session_id, written.run_id)
    works: Sequence[partial[object]] = [partial(reader.assemble) for _ in range(CALLERS)]
    return await rate_of(works, SECONDS)
