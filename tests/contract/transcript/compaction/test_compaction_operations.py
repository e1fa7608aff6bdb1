"""CompactTranscript: the operations with which clients compact transcripts."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from google.longrunning.operations_pb2 import Operation
from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.operations.v1 import operation_service_pb2 as operation_pb
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import ClientRole

from tests.support.transcript.bodies import assistant
from tests.support.transcript.compaction import Compacting, CompactionService, Gate, words
from tests.support.transcript.fixtures import Service, refused
from tests.support.transcript.operating import (
    call_operations,
    carry,
    metadata_of,
    response_of,
    result_of,
)
from tests.support.transcript.tables import Superuser, rows_of
from tests.support.waiting import eventually

KIND = pb.CompactTranscriptResponse
_PIECES = 3
_PROMPTS = 6
_PER_PIECE = 25  # A model reads six prompts for a summary, of about five of these messages each.
_DUE = "update jobs set due_time = now() where tenant_id = %s and kind = 'operation'"


async def get(compacting: Compacting, name: str) -> Operation:
    request = operation_pb.GetOperationRequest(name=name)
    found: Operation = await call_operations(compacting.session, "GetOperation", request)
    return found


async def cancel(compacting: Compacting, name: str) -> None:
    request = operation_pb.CancelOperationRequest(name=name)
    await call_operations(compacting.session, "CancelOperation", request)


async def summaries_of(compacting: Compacting) -> list[entry_pb.Entry]:
    return [one for one in await compacting.session.entries() if one.body.HasField("compaction")]


async def counts_of(compacting: Compacting, name: str) -> tuple[int, int]:
    metadata = metadata_of(await get(compacting, name))
    return metadata.done_count, metadata.total_count


@pytest.fixture
async def idle(compacting: Compacting) -> Compacting:
    """A transcript of eleven entries that no run writes."""
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    await compacting.session.release(claim)
    return compacting


@pytest.fixture
async def long(compacting: Compacting) -> Compacting:
    """A transcript that takes three summaries."""
    claim = await compacting.session.acquire(1)
    for number in range(_PIECES):
        texts = [assistant(words(f"{number}-{part}", 3_500)) for part in range(_PER_PIECE)]
        await compacting.session.append(texts, claim=claim)
    await compacting.session.append([assistant("fresh"), assistant("fresh")], claim=claim)
    await compacting.session.release(claim)
    return compacting


async def test_CompactTranscript__names_the_summary_of_the_oldest_entries(idle: Compacting) -> None:
    started = await idle.start(models=["a/one", "b/two"])
    begun = metadata_of(started)
    assert (started.done, begun.method, begun.subject) == (False, "CompactTranscript", "tester")
    response = await result_of(idle.session, started, KIND)
    [summary] = await summaries_of(idle)
    assert (response.summary_entry_id, response.summary_seq) == (summary.entry_id, summary.seq)
    assert response.summarized_entry_count == summary.body.compaction.sources.entry_count == 6
    counted = summary.body.compaction
    kept = counted.token_count_before - counted.sources.token_count
    assert response.summary_token_count == counted.token_count_after - kept > 0
    assert await counts_of(idle, started.name) == (6, 6)
    assert summary.writer == entry_pb.Writer(client="tester")
    assert idle.peers.judged[-1].run_id == ""
    assert [idle.peers.prompts[0].model, *idle.peers.prompts[0].fallbacks.models] == ["a/one", "b/two"]
    again = await idle.compact_all()
    assert again == KIND(), "nothing is left to summarize"
    assert len(idle.peers.prompts) == 1


async def test_CompactTranscript__a_long_transcript_takes_several_summaries(long: Compacting) -> None:
    seen: list[tuple[int, int]] = []

    async def look() -> None:
        seen.append(await counts_of(long, started.name))

    long.peers.on_generate = look
    started = await long.start()
    response = await result_of(long.session, started, KIND)
    made = await summaries_of(long)
    assert len(made) == _PIECES
    assert response.summary_entry_id == made[-1].entry_id
    assert made[-1].body.compaction.sources.previous_entry_id == made[-2].entry_id
    assert response.summarized_entry_count == sum(one.body.compaction.sources.entry_count for one in made)
    assert seen == sorted(seen), "the counts never decrease"
    assert len(set(seen)) == _PIECES
    assert {total for _, total in seen} == {response.summarized_entry_count}


async def test_CompactTranscript__a_cancellation_ends_it_between_two_summaries(long: Compacting) -> None:
    gate = long.peers.on_generate = Gate()
    started = await long.start()
    carrying = asyncio.create_task(carry(long.session.service))
    await gate.reached.wait()
    await cancel(long, started.name)
    gate.opened.set()
    await carrying
    with refused(Reason.CANCELLED):
        await result_of(long.session, started, KIND)
    [summary] = await summaries_of(long)
    partial = KIND()
    assert metadata_of(await get(long, started.name)).partial_response.Unpack(partial)
    assert partial.summary_entry_id == summary.entry_id


async def test_CompactTranscript__a_repeat_is_the_same_operation(idle: Compacting) -> None:
    twice = await asyncio.gather(*(idle.start(request_id="once") for _ in range(3)))
    assert len({one.name for one in twice}) == 1
    with refused(Reason.REQUEST_ID_REUSED):
        await idle.start(request_id="once", models=["another"])
    await result_of(idle.session, twice[0], KIND)
    assert await idle.start(request_id="once") == await get(idle, twice[0].name)
    assert len(await summaries_of(idle)) == 1


async def test_CompactTranscript__of_two_at_once_both_end_well(long: Compacting) -> None:
    """One of them is slower, repeats its step behind the summary of the other, and counts it too."""
    gate = long.peers.on_generate = Gate()
    first, second = [await long.start() for _ in range(2)]
    carrying = asyncio.create_task(carry(long.session.service))
    await eventually(lambda: len(long.peers.prompts) == 2)
    gate.opened.set()
    await carrying
    responses = [await result_of(long.session, one, KIND) for one in (first, second)]
    made = await summaries_of(long)
    assert len(made) == _PIECES
    assert responses[0] == responses[1]
    assert responses[0].summary_entry_id == made[-1].entry_id


async def test_CompactTranscript__a_run_that_writes_refuses_it(idle: Compacting) -> None:
    claim = await idle.session.acquire(2)
    with refused(Reason.CONFLICT):
        await idle.start()
    await idle.session.release(claim)
    gate = idle.peers.on_generate = Gate()
    started = await idle.start()
    carrying = asyncio.create_task(carry(idle.session.service))
    await gate.reached.wait()
    await idle.session.acquire(3)
    gate.opened.set()
    await carrying
    with refused(Reason.CONFLICT):
        response_of(await get(idle, started.name), KIND)
    assert not await summaries_of(idle)


async def test_CompactTranscript__a_plugin_may_refuse(idle: Compacting) -> None:
    keep = hook_pb.CompactionDecision(keep_whole=hook_pb.KeepWhole(reason="Under audit."))
    idle.peers.decision.CopyFrom(keep)
    response = await idle.compact_all()
    assert response == KIND(refused_by="keeper", refusal="Under audit.")
    assert not idle.peers.prompts


@pytest.mark.parametrize(
    ("failure", "retried"),
    [
        (MeshError(Reason.STREAM_BROKEN, "it broke"), True),
        (MeshError(Reason.ALL_CANDIDATES_FAILED, "none answers", facts={"is_transient": "true"}), True),
        (MeshError(Reason.ALL_CANDIDATES_FAILED, "none will", facts={"is_transient": "false"}), False),
        (MeshError(Reason.MODEL_REFUSED, "too large"), False),
        (MeshError(Reason.BUDGET_EXCEEDED, "until next month"), False),
    ],
    ids=lambda value: value.message if isinstance(value, MeshError) else str(value),
)
async def test_CompactTranscript__a_failure_that_passes_is_tried_again(
    idle: Compacting, superuser: Superuser, failure: MeshError, retried: bool
) -> None:
    idle.peers.answers.append(failure)
    started = await idle.start()
    await carry(idle.session.service)
    found = await get(idle, started.name)
    assert found.done is not retried
    assert not await summaries_of(idle)
    if not retried:
        with refused(failure.reason):
            response_of(found, KIND)
        return
    assert metadata_of(found).retry_reason == failure.reason.value
    await superuser.execute(_DUE, (idle.session.tenant_id,))
    assert (await result_of(idle.session, started, KIND)).summarized_entry_count == 6


async def test_CompactTranscript__goes_on_after_its_worker_was_killed(
    long: Compacting, compaction_service: CompactionService, superuser: Superuser, keys: Path
) -> None:
    gate = Gate()

    async def stop_at_the_second() -> None:
        if len(long.peers.prompts) > _PROMPTS:
            await gate()

    long.peers.on_generate = stop_at_the_second
    started = await long.start()
    own = {
        "DATABASE_URL": compaction_service.service.dsn.app,
        "MODEL_ROUTER_TARGET": compaction_service.peers_target,
        "HOOK_TARGET": compaction_service.peers_target,
        "JWKS_FILE": str(keys / "jwks.json"),
        "SIGNING_KEY_FILE": str(keys / "transcript.pem"),
        "LOG_LEVEL": "error",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spawnmesh_transcript", "worker"),
        env={"PATH": os.environ["PATH"], **{f"TRANSCRIPT_{name}": value for name, value in own.items()}},
    )
    try:
        await asyncio.wait_for(gate.reached.wait(), 60)
    finally:
        process.kill()
        await process.wait()
    gate.opened.set()
    long.peers.on_generate = None
    done_count, total_count = await counts_of(long, started.name)
    assert 0 < done_count < total_count, "the first summary is recorded"
    await superuser.execute(_DUE, (long.session.tenant_id,))  # The claim would end after 30 s.
    response = await result_of(long.session, started, KIND)
    made = await summaries_of(long)
    assert len(made) == _PIECES
    assert response.summarized_entry_count == sum(one.body.compaction.sources.entry_count for one in made)


async def test_CompactTranscript__a_summary_whose_worker_was_lost_is_counted(
    long: Compacting, superuser: Superuser
) -> None:
    """The worker appended a summary and was lost before it recorded its step."""
    started = await long.start()
    at_generate = 0

    async def lose_the_step() -> None:
        nonlocal at_generate
        at_generate += 1
        if at_generate == 1:  # Another worker took the operation over meanwhile.
            await superuser.execute(
                "update operations set step_count = step_count + 1 where tenant_id = %s",
                (long.session.tenant_id,),
            )

    long.peers.on_generate = lose_the_step
    response = await result_of(long.session, started, KIND)
    made = await summaries_of(long)
    assert len(made) == _PIECES, "no summary was made twice"
    assert response.summarized_entry_count == sum(one.body.compaction.sources.entry_count for one in made)


async def test_CompactTranscript__a_deleted_transcript_ends_it(idle: Compacting) -> None:
    started = await idle.start()
    await idle.session.delete()
    with refused(Reason.NOT_FOUND):
        await result_of(idle.session, started, KIND)
    with refused(Reason.NOT_FOUND):
        await idle.start()


async def test_CompactTranscript__a_purge_of_the_tenant_deletes_it(
    idle: Compacting, superuser: Superuser
) -> None:
    gate = idle.peers.on_generate = Gate()
    started = await idle.start()
    carrying = asyncio.create_task(carry(idle.session.service))
    await gate.reached.wait()
    await idle.session.delete()
    while not (await idle.session.purge_tenant()).done:
        pass
    gate.opened.set()
    await carrying
    assert await rows_of(superuser, idle.session.tenant_id) == {"purged_tenants": 1}
    with refused(Reason.NOT_FOUND):
        await get(idle, started.name)


async def test_CompactTranscript__is_for_users_of_the_tenant(idle: Compacting) -> None:
    service = idle.session.service
    with refused(Reason.NOT_FOUND):
        await idle.start(token=service.session().client_token())
    reader = service.client_minter.client_token(idle.session.tenant_id, "reader", 300, role=ClientRole.READER)
    with refused(Reason.ROLE_MISSING):
        await idle.start(token=reader)
    claim = await idle.session.acquire(2)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await idle.start(token=idle.session.run_token(claim))
    assert not idle.peers.judged


async def test_CompactTranscript__a_service_without_peers_refuses(idle: Compacting, service: Service) -> None:
    alone = Compacting(service.session(idle.session.tenant_id), idle.peers)
    object.__setattr__(alone.session, "session_id", idle.session.session_id)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await alone.start()
