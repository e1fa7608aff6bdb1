"""A run whose context is due is compacted before the model call, and continues if that fails."""

import asyncio
import json
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.attachment_blob.fixtures import blobs
from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.transcript.bodies import assistant, text_block, user
from tests.support.transcript.compaction import (
    SHORT,
    USAGE,
    Compacting,
    CompactionService,
    Peers,
    compaction_service,
    words,
)
from tests.support.transcript.fixtures import Session, service
from tests.support.waiting import eventually

__all__ = ["blobs", "compaction_service", "service"]

LIST = ("c1", "list_files", "{}")


def listing(number: int) -> message_pb2.Message:
    """Return an answer that calls a tool, unlike the answers of other numbers."""
    return calling((f"l{number}", "list_files", json.dumps({"path": f"folder-{number}"})))


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    return ScriptedMesh(TokenMinter("session", keys / "session.pem"))


@pytest.fixture
async def real(mesh: ScriptedMesh, compaction_service: CompactionService) -> Compacting:
    """Return the session's transcript with 42,000 tokens.

    Its tenant compacts at 30 percent of the 100,000 tokens that runs have.
    """
    session = Session(compaction_service.service, TENANT, mesh.session_id)
    peers = compaction_service.peers[TENANT] = Peers()
    await session.create()
    compacting = Compacting(session, peers)
    await compacting.set_threshold(int(asyncio.get_running_loop().time() * 1_000), 30)
    earlier = await session.acquire(1)
    for number in range(30):
        await session.append([user(words(f"ask-{number}", 700))])
        await session.append([assistant(words(f"say-{number}", 700))], claim=earlier)
    await session.release(earlier)
    await session.append([user("Do it.")])
    return compacting


def texts(messages: list[message_pb2.Message]) -> list[str]:
    return ["".join(block.text.text for block in message.content) for message in messages]


async def test_a_run_over_the_threshold_reads_the_summary_instead_of_its_sources(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
) -> None:
    mesh.answers.extend([calling(LIST), saying("Done.")])
    mesh.queue_run(epoch=2, tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path, transcript_target=compaction_service.service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert len(mesh.prompts) == 2, "an answer that was discarded would have been asked for again"
    assert mesh.finalized is not None
    assert mesh.finalized.usage == message_pb2.TokenUsage(
        input_token_count=10 + 10 + USAGE.input_token_count,
        output_token_count=2 + 2 + USAGE.output_token_count,
        cache_read_token_count=USAGE.cache_read_token_count,
        cache_write_token_count=USAGE.cache_write_token_count,
        cost_micros=USAGE.cost_micros,
        price_version=USAGE.price_version,
    ), "two answers and the summary"
    for prompt in mesh.prompts:
        first, *others = texts(list(prompt.messages))
        assert first.startswith("[Summary of the earlier part of this conversation")
        assert "\n\nThe gist.\n\n[End of the summary." in first
        assert prompt.messages[0].role == message_pb2.ROLE_USER
        assert not any(text.startswith("ask-0 ") for text in others)
        assert "Do it." in others
        assert others[0].split()[0].startswith(("ask-", "say-"))
    assert len(real.peers.judged) == len(real.peers.prompts) == 1
    assert real.peers.judged[0].run_id == mesh.run_id
    claim = transcript_pb.WriterClaim(run_id=mesh.run_id, epoch=2)
    await real.session.release(claim)  # As the session service does for a run that ended.
    assert (await real.compact_all()).summary_entry_id
    assert (real.peers.prompts[0].model, list(real.peers.prompts[0].fallbacks.models)) == (
        "scripted/one",
        ["scripted/two"],
    )


async def test_after_a_takeover_the_tokens_of_summaries_are_counted(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
) -> None:
    claim = await real.session.acquire(2, run_id=mesh.run_id)
    await real.compact(claim, tail=SHORT)
    await real.session.release(claim)
    asked_count = len(real.peers.prompts)
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=3)
    async with running_runner(mesh, keys, tmp_path, transcript_target=compaction_service.service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.finalized is not None
    assert len(real.peers.prompts) == asked_count > 0, "the context was short by then"
    usage = mesh.finalized.usage
    assert usage.input_token_count == 10 + asked_count * USAGE.input_token_count
    assert (usage.cost_micros, usage.price_version) == (asked_count * USAGE.cost_micros, USAGE.price_version)


async def test_a_run_continues_when_compaction_fails_and_stops_trying(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
) -> None:
    real.peers.answers.append(MeshError(Reason.ALL_CANDIDATES_FAILED, "nobody answers"))
    mesh.answers.extend([*map(listing, range(4)), saying("Done.")])
    mesh.queue_run(epoch=2, tools=("list_files",))

    def refuse_next() -> None:
        real.peers.decision.CopyFrom(hook_pb.CompactionDecision(keep_whole=hook_pb.KeepWhole(reason="No.")))

    mesh.on_generate = refuse_next
    async with running_runner(mesh, keys, tmp_path, transcript_target=compaction_service.service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert texts(list(mesh.prompts[0].messages))[0].startswith("ask-0 ")
    assert (len(mesh.prompts), len(real.peers.judged), len(real.peers.prompts)) == (5, 2, 1)


def refused_by_budget() -> MeshError:
    return MeshError(Reason.SESSION_BUDGET_EXCEEDED, "a limit is reached")


async def test_a_compaction_that_a_budget_refused_is_no_failed_one_and_is_made_when_there_is_room(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
) -> None:
    """As many failures would turn compactions off."""
    real.peers.answers += [refused_by_budget() for _ in range(3)]
    mesh.budgets.states += [session_pb2.RUN_STATE_RUNNING] * 3
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=2, max_turns=1)
    async with running_runner(mesh, keys, tmp_path, transcript_target=compaction_service.service.target):
        await eventually(lambda: mesh.finalized or mesh.failed or mesh.released_claims)
    assert mesh.finalized is not None
    assert (len(mesh.budgets.requests), len(mesh.prompts)) == (3, 1)
    assert texts(list(mesh.prompts[0].messages))[0].startswith("[Summary of the earlier part")


async def test_a_run_whose_compaction_a_budget_refuses_waits_before_it_has_a_turn(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
) -> None:
    real.peers.answers.append(refused_by_budget())
    mesh.queue_run(epoch=2, max_turns=1)
    target = compaction_service.service.target
    async with running_runner(mesh, keys, tmp_path, transcript_target=target):
        await eventually(lambda: mesh.budgets.requests)
        mesh.answers.append(saying("Done."))
        mesh.queue_run(epoch=3, max_turns=1)
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert (len(mesh.budgets.requests), len(mesh.prompts)) == (1, 1)
    assert texts(list(mesh.prompts[0].messages))[0].startswith("[Summary of the earlier part")


@pytest.mark.parametrize("speaks_again", [False, True])
async def test_the_progress_of_a_summarized_turn_is_known(
    mesh: ScriptedMesh,
    real: Compacting,
    compaction_service: CompactionService,
    keys: Path,
    tmp_path: Path,
    speaks_again: bool,
) -> None:
    """A written file leaves the context.

    The next runner still knows it, unless another writer spoke since.
    """
    write = ("w1", "write_file", json.dumps({"path": "a.txt", "content": "a"}))
    mesh.answers.append(calling(write))
    for number in range(6):
        answer = listing(number)
        answer.content.append(text_block(words(f"thought-{number}", 8_000)))
        mesh.answers.append(answer)
    mesh.answers.append(saying("Done."))

    def speak() -> None:
        if speaks_again and len(mesh.prompts) == 2:
            mesh.inbox.append(run_pb.InboxMessage(key="message:v1:1", text="And?"))

    mesh.on_generate = speak
    mesh.queue_run(epoch=2, tools=("list_files", "write_file"))
    async with running_runner(mesh, keys, tmp_path, transcript_target=compaction_service.service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    last = mesh.prompts[-1]
    names = [
        block.tool_call.name
        for message in last.messages
        for block in message.content
        if block.HasField("tool_call")
    ]
    assert "write_file" not in names
    assert list(last.partial_execution.tool_names) == (
        ["list_files"] if speaks_again else ["write_file", "list_files"]
    )
