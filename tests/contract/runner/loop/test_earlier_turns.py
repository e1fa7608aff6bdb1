"""A runner reads back only its own run; the first runner of a run reads back nothing."""

from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.listing import PAGE_SIZE
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

USER, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_TOOL_RESULT
LIST = ("c1", "list_files", "{}")
EARLIER_TURNS = 50
NOTE = entry_pb2.EntryBody(system_note=entry_pb2.SystemNote(text="There is a file.", topic="attachments"))


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """Return a mesh whose session had an earlier run, at epochs 1 and 2, with many turns and a
    compaction.
    """
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    earlier_id = new_id(IdKind.RUN)
    scripted.write(text_message(USER, "Do it."), epoch=0)
    for turn in range(EARLIER_TURNS):
        scripted.store(entry_pb2.EntryBody(message=saying(f"turn {turn}")), earlier_id, 1 + turn % 2)
    scripted.store(summary(), earlier_id, 2)
    said(scripted, "And now this.")
    return scripted


def summary() -> entry_pb2.EntryBody:
    """Return a summary whose model calls cost 300 tokens."""
    usage = message_pb2.TokenUsage(input_token_count=200, output_token_count=100)
    sources = entry_pb2.SummarySources(usage=usage)
    return entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary="So far.", sources=sources))


def priced(message: message_pb2.Message, cost_micros: int, version: str) -> message_pb2.Message:
    message.usage.cost_micros, message.usage.price_version = cost_micros, version
    return message


def said(mesh: ScriptedMesh, text: str) -> None:
    """Store another writer's message, note and mirrored message: entries without a claim."""
    mesh.store(entry_pb2.EntryBody(message=text_message(USER, text)))
    mesh.store(entry_pb2.EntryBody(message=saying("copied")))
    mesh.store(NOTE)


def answered(call_id: str) -> message_pb2.Message:
    result = text_message(RESULT, "{}")
    result.tool_call_id = call_id
    return result


async def execute_run(
    mesh: ScriptedMesh, keys: Path, folder: Path, *, epoch: int, max_turns: int = 0
) -> None:
    mesh.queue_run(epoch=epoch, tools=("list_files",), max_turns=max_turns)
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)


@pytest.mark.parametrize(("epoch", "first_epoch"), [(3, 3), (1, 1)], ids=["later", "first"])
async def test_ListEntries__the_first_runner_of_a_run_reads_back_nothing(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, epoch: int, first_epoch: int
) -> None:
    mesh.first_epoch = first_epoch
    mesh.answers.append(saying("Done."))
    await execute_run(mesh, keys, tmp_path, epoch=epoch)
    assert mesh.finalized is not None
    assert (mesh.finalized.usage.input_token_count, mesh.finalized.usage.output_token_count) == (10, 2)
    assert mesh.listing.requests == []


def take_over(mesh: ScriptedMesh) -> None:
    """Store the entries of two runners that the run had, with others between them."""
    mesh.first_epoch = 3
    mesh.write(calling(LIST), epoch=3)
    mesh.write(answered("c1"), epoch=3)
    said(mesh, "Mind the gap.")
    mesh.store(summary(), mesh.run_id, 4)
    mesh.write(calling(("c2", "list_files", "{}")), epoch=4)
    mesh.answers.append(saying("Done."))


async def test_ListEntries__a_page_without_entries_does_not_end_what_is_read_back(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    take_over(mesh)
    mesh.listing.scan_limit = 1
    await execute_run(mesh, keys, tmp_path, epoch=5)
    assert mesh.finalized is not None
    assert mesh.finalized.usage.input_token_count == 3 * 10 + 200
    assert mesh.finalized.usage.output_token_count == 3 * 2 + 100


async def test_ListEntries__after_a_takeover_the_runs_own_entries_are_read(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    take_over(mesh)
    await execute_run(mesh, keys, tmp_path, epoch=5)
    assert mesh.finalized is not None
    assert mesh.finalized.usage.input_token_count == 3 * 10 + 200
    assert mesh.finalized.usage.output_token_count == 3 * 2 + 100
    pages = [request for request in mesh.listing.requests if request.HasField("before_seq")]
    assert min(mesh.listing.given) > 1
    own_and_between, said_before, stopping = 6, 2, 1
    assert len(pages) == (own_and_between + said_before) // PAGE_SIZE + stopping


async def test_ListEntries__the_cost_of_earlier_turns_and_summaries_is_counted(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The version of the prices is the newest, although the newest turns are read first."""
    mesh.first_epoch = 3
    mesh.write(priced(calling(LIST), 1, "v1"), epoch=3)
    mesh.write(answered("c1"), epoch=3)
    body = summary()
    body.compaction.sources.usage.cost_micros = 20
    body.compaction.sources.usage.price_version = "v2"
    mesh.store(body, mesh.run_id, 4)
    mesh.write(priced(calling(("c2", "list_files", "{}")), 300, "v3"), epoch=4)
    mesh.answers.append(priced(saying("Done."), 4000, ""))
    await execute_run(mesh, keys, tmp_path, epoch=5)
    assert mesh.finalized is not None
    assert (mesh.finalized.usage.cost_micros, mesh.finalized.usage.price_version) == (4321, "v3")


async def test_FailRun__a_later_run_has_its_own_turns(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    """The turns of the earlier run do not count.

    Those that this run took before its takeover do.
    """
    mesh.first_epoch = 3
    mesh.write(calling(LIST), epoch=3)
    mesh.write(answered("c1"), epoch=3)
    mesh.answers.extend([calling((f"c{number}", "list_files", "{}")) for number in range(2, 9)])
    await execute_run(mesh, keys, tmp_path, epoch=4, max_turns=4)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert len(mesh.prompts) == 3


async def test_AcquireWriter__a_runner_lost_before_it_wrote_counts_nothing(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.first_epoch = 3
    mesh.answers.append(saying("Done."))
    await execute_run(mesh, keys, tmp_path, epoch=4)
    assert mesh.finalized is not None
    assert mesh.finalized.usage.input_token_count == 10
    assert min(mesh.listing.given) > EARLIER_TURNS - PAGE_SIZE
