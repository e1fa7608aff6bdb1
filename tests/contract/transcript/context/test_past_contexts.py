"""AssembleContext with `up_to_seq`: what a model read when the transcript ended there."""

from collections.abc import Awaitable, Callable

import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, result, superseded, user
from tests.support.transcript.compaction import Compacting, words
from tests.support.transcript.tier import NO_TAIL, Tiered, long_text

Read = Callable[..., Awaitable[pb.AssembleContextResponse]]
BUDGETS = (60, 400, 100_000)


class Witness:
    """Reads contexts as a transcript grows, and compares them with those of the past later."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen: dict[tuple[int, int], pb.AssembleContextResponse] = {}

    async def look(self, seq: int) -> None:
        """Read the contexts of now, at whose end is `seq`."""
        for budget in BUDGETS:
            self._seen[seq, budget] = await self._read(budget)

    async def compare(self) -> list[int]:
        """Fail for a context of the past that differs. Return the seqs that were compared."""
        for (seq, budget), seen in self._seen.items():
            past = await self._read(budget, up_to_seq=seq)
            seen.compaction_due = False
            assert past == seen, f"up to {seq}, in {budget} tokens"
        return sorted({seq for seq, _ in self._seen})


async def test_AssembleContext__the_past_is_what_was_read_then(compacting: Compacting) -> None:
    """With open calls, superseded drafts, messages in between, and two summaries."""
    session = compacting.session

    async def read(budget: int, **more: int) -> pb.AssembleContextResponse:
        """Read with a tail whose begin depends on the tokens of all entries."""
        return await compacting.context(budget, fresh_tail=FreshTail(token_count=300), **more)

    witness = Witness(read)
    claim = await session.acquire(1)

    async def grow(*bodies: object, claimed: bool = True) -> str:
        appended = await session.append(list(bodies), **({"claim": claim} if claimed else {}))
        await witness.look(appended.head.seq)
        return appended.entries[-1].entry_id

    await grow(user("the task"), claimed=False)
    await grow(assistant("a", "c1", "c2"))
    await grow(result("c1", "r1"))
    await grow(user("meanwhile"), claimed=False)
    await grow(result("c2", "r2"))
    draft = await grow(assistant("a draft"))
    await grow(superseded(draft))
    asked = await grow(user(words("taken back")), claimed=False)
    await grow(superseded(asked))
    await grow(assistant("b"))
    for number in range(2):
        await compacting.converse(claim, turns=4, name=f"part-{number}")
        compacting.peers.answers.append(f"summary {number}")
        summary = (await compacting.compact(claim)).summary
        await witness.look(summary.seq)
        await grow(user(f"behind summary {number}"), claimed=False)
    late = await grow(assistant("a late draft"))
    await grow(superseded(late))
    assert len(await witness.compare()) >= 14


async def test_AssembleContext__references_of_the_past_are_those_of_that_time(tiered: Tiered) -> None:
    """A result that is a reference now was complete for the model that had just made the call."""

    async def read(budget: int, **more: int) -> pb.AssembleContextResponse:
        return await tiered.context(budget, tail=NO_TAIL, **more)

    witness = Witness(read)
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    for name in "abc":
        [seq] = await tiered.converse(claim, long_text(name), path=f"/var/log/{name}")
        await witness.look(seq)
        appended = await tiered.session.append([assistant(f"read {name}")], claim=claim)
        await witness.look(appended.head.seq)
    assert len(await witness.compare()) == 6


async def test_AssembleContext__a_past_that_was_not_is_refused(compacting: Compacting) -> None:
    appended = await compacting.session.append([user("task")])
    assert await compacting.context(up_to_seq=appended.head.seq) == await compacting.context()
    for seq in (appended.head.seq + 1, 2**63 - 1):
        with pytest.raises(MeshError) as refusal:
            await compacting.context(up_to_seq=seq)
        assert refusal.value.reason is Reason.INVALID_REQUEST
        [violation] = refusal.value.violations
        assert violation.field == "up_to_seq"
