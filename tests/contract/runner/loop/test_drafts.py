"""A runner among scripted peers: it shows what a model says while it says it, at no cost of the run."""

import asyncio
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerationEvent
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece, ToolCallPiece
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

BROKEN = MeshError(Reason.STREAM_BROKEN, "the answer broke off", facts={"transient": "true"})


async def test_WriteDraft__the_text_is_there_before_the_answer_ends(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.spoken_first = asyncio.Event(), ("Good ", "mörning")
    mesh.answers.append(saying("Good mörning, Ada"))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.drafts.get(1) == "Good mörning")
        assert mesh.finalized is None
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    first = mesh.draft_calls[0]
    assert (first.model, first.claim.epoch, first.offset) == ("scripted/one", 1, 0)
    # It is the fence of the window in which the model answers.
    assert first.after_seq == max(mesh.window_seqs[0], 1)


async def test_WriteDraft__thinking_and_calls_are_there_before_the_answer_ends(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    arguments = '{"path":"é.txt"}'
    begun = router_pb.ToolCallDelta(tool_call_id="c1", name="list_files", begins_call=True)
    grown = router_pb.ToolCallDelta(tool_call_id="c1", name="list_files", arguments=arguments[:9])
    mesh.hold_model = asyncio.Event()
    mesh.spoken_first = (
        GenerationEvent(thinking_delta=router_pb.ThinkingDelta(text="Hm. ")),
        "I look.",
        GenerationEvent(thinking_delta=router_pb.ThinkingDelta(text="Well.")),
        GenerationEvent(tool_call_delta=begun),
        GenerationEvent(tool_call_delta=grown),
    )
    call = calling(("c1", "list_files", arguments))
    mesh.answers.extend([call, saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    said = [
        DraftPiece(thinking="Hm. "),
        DraftPiece(text="I look."),
        DraftPiece(thinking="Well."),
        DraftPiece(tool_call=ToolCallPiece(tool_call_id="c1", name="list_files", begins_call=True)),
    ]
    said[-1].tool_call.arguments = arguments[:9]
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: joined(mesh.draft_pieces[1]) == said)
        assert mesh.messages(message_pb2.ROLE_ASSISTANT) == []
        mesh.spoken_first = ()
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)


async def test_WriteDraft__a_spawn_is_shown_without_its_arguments(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    arguments = '{"task":"Read it","attachments":[{"name":"a","content":"aGVsbG8="}]}'
    head = {"tool_call_id": "c1", "name": "sessions_spawn"}
    mesh.hold_model = asyncio.Event()
    mesh.spoken_first = (
        GenerationEvent(tool_call_delta=router_pb.ToolCallDelta(**head, begins_call=True)),
        GenerationEvent(tool_call_delta=router_pb.ToolCallDelta(**head, arguments=arguments)),
        "That is it.",
    )
    mesh.answers.append(saying("That is it."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.drafts.get(1) == "That is it.")
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    call = DraftPiece(tool_call=ToolCallPiece(**head, begins_call=True))
    assert joined(mesh.draft_pieces[1]) == [call, DraftPiece(text="That is it.")]


def joined(pieces: Iterable[DraftPiece]) -> list[DraftPiece]:
    """Return the pieces, each with what continues it."""
    whole: list[DraftPiece] = []
    for piece in pieces:
        kind = piece.WhichOneof("piece")
        if whole and whole[-1].WhichOneof("piece") == kind and not piece.tool_call.begins_call:
            if kind == "tool_call":
                whole[-1].tool_call.arguments += piece.tool_call.arguments
            else:
                whole[-1].MergeFrom(
                    DraftPiece(**{kind: getattr(whole[-1], str(kind)) + getattr(piece, str(kind))})
                )
        else:
            whole.append(DraftPiece.FromString(piece.SerializeToString()))
    return whole


async def test_WriteDraft__each_answer_and_each_attempt_is_a_draft_of_its_own(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.spoken_first = asyncio.Event(), ("I think",)
    mesh.answers.extend([BROKEN, calling(("c1", "list_files", "{}")), saying("I think so.")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        for number in (1, 2, 3):
            await eventually(lambda number=number: mesh.drafts.get(number) == "I think")  # type: ignore[misc]
            held, mesh.hold_model = mesh.hold_model, asyncio.Event()
            held.set()
        await eventually(lambda: mesh.finalized)
    assert sorted(mesh.drafts) == [1, 2, 3]
    by_number = {call.number: call.after_seq for call in mesh.draft_calls}
    assert by_number[1] == by_number[2] < by_number[3]


async def test_WriteDraft__a_transcript_that_hangs_or_refuses_delays_no_answer(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_draft, mesh.hold_model, mesh.spoken_first = asyncio.Event(), asyncio.Event(), ("Good ",)
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("Good morning")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.draft_calls)
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    assert mesh.drafts == {}
    assert mesh.failed is None
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "Good morning"


async def test_WriteDraft__an_attempt_that_begins_during_a_call_is_another_draft(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_draft, mesh.hold_model, mesh.spoken_first = asyncio.Event(), asyncio.Event(), ("I am",)
    mesh.answers.extend([BROKEN, saying("ééé")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.draft_calls)
        held, mesh.hold_model, mesh.spoken_first = mesh.hold_model, asyncio.Event(), ("ééé",)
        held.set()
        await eventually(lambda: len(mesh.prompts) == 2)
        mesh.hold_draft.set()
        await eventually(lambda: mesh.drafts.get(2) == "ééé")
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    assert mesh.drafts == {1: "I am", 2: "ééé"}


async def test_WriteDraft__is_repeated_in_an_outage_and_given_up_after_a_refusal(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.spoken_first = asyncio.Event(), ("Good ",)
    refusals = mesh.refusals["WriteDraft"] = deque([unavailable("PostgreSQL")])
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("Good morning")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.drafts.get(1) == "Good ")
        await eventually(mesh.model_called.is_set)  # The model is held by this event, not the next.
        held, mesh.hold_model = mesh.hold_model, asyncio.Event()
        refusals.append(MeshError(Reason.INVALID_REQUEST, "no"))
        held.set()
        await eventually(lambda: mesh.draft_calls[-1].number == 2)
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    assert [call.number for call in mesh.draft_calls] == [1, 1, 2]


async def test_WriteDraft__a_full_draft_gets_no_more_text(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model, mesh.max_draft_bytes = asyncio.Event(), 100_000
    mesh.spoken_first = ("€" * 60_001,)
    mesh.answers.append(saying("€" * 60_001))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        # A piece has at most 64 KiB and whole characters, and the second one fills the draft.
        await eventually(lambda: len(mesh.drafts.get(1, "")) > 40_000)
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    sizes = [len(call.pieces[0].text.encode()) for call in mesh.draft_calls]
    assert sizes == [65_535, 65_535]
    assert set(mesh.drafts[1]) == {"€"}
    assert len(mesh.messages(message_pb2.ROLE_ASSISTANT)[0].content[0].text.text) == 60_001
