"""Answers and messages in the last turn that the agent may take."""

from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_client.turn_messages import text_message
from spawnmesh_runner.domain.turns import LATE_TURN_COUNT
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

USER = message_pb2.ROLE_USER
REVISE = pb.FinalizeRunResponse(revise=pb.Revision(instruction="Be shorter.", number=1, max_revision_count=3))
PENDING = pb.FinalizeRunResponse(messages_pending=pb.MessagesPending(count=1))


class Judged(ScriptedMesh):
    """A session service that revises no draft of a last turn, and delivers messages before any
    draft.
    """

    offered: list[pb.FinalizeRunRequest]
    late: list[str]

    def judge(self, request: pb.FinalizeRunRequest) -> pb.FinalizeRunResponse | None:
        self.offered.append(request)
        if self.late:
            text = self.late.pop(0)
            self.inbox.append(pb.InboxMessage(key=f"message:v1:{text}", text=text))
            return PENDING
        return None if request.is_last_turn else REVISE


@pytest.fixture
def mesh(keys: Path) -> Judged:
    """Return a mesh whose plugins want every draft revised."""
    scripted = Judged(TokenMinter("session", keys / "session.pem"))
    scripted.offered, scripted.late = [], []
    scripted.write(text_message(USER, "Do it."), epoch=0)
    return scripted


def texts(messages: list[message_pb2.Message]) -> list[str]:
    return ["".join(block.text.text for block in message.content) for message in messages]


async def execute_run(mesh: Judged, keys: Path, folder: Path, *, max_turns: int, epoch: int = 1) -> None:
    mesh.queue_run(epoch=epoch, tools=("list_files",), max_turns=max_turns)
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)


async def test_FinalizeRun__only_the_last_turns_draft_is_marked_as_last(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend([saying("Long."), saying("Shorter.")])
    await execute_run(mesh, keys, tmp_path, max_turns=2)
    assert mesh.failed is None
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "Shorter."
    assert [request.is_last_turn for request in mesh.offered] == [False, True]


async def test_FinalizeRun__after_a_takeover_the_last_turns_draft_is_marked_as_last(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    mesh.write(saying("Done before the crash."))
    await execute_run(mesh, keys, tmp_path, epoch=2, max_turns=1)
    assert mesh.finalized is not None
    assert mesh.finalized.is_last_turn


async def test_FinalizeRun__messages_in_the_last_turn_get_late_turns(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    """The messages may ask for more than an answer."""
    mesh.late = ["One more thing.", "And another."]
    mesh.answers.extend(
        [saying("Early."), calling(("c1", "list_files", "{}")), saying("Later."), saying("At last.")]
    )
    await execute_run(mesh, keys, tmp_path, max_turns=1)
    assert mesh.failed is None
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "At last."
    assert texts(list(mesh.prompts[1].messages)) == ["Do it.", "Early.", "One more thing."]
    assert all(request.is_last_turn for request in mesh.offered)


async def test_FailRun__endless_messages_get_late_turns_once(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    mesh.late = [str(number) for number in range(20)]
    mesh.answers.extend([saying("Early.")] * 20)
    await execute_run(mesh, keys, tmp_path, max_turns=1)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert len(mesh.prompts) == 1 + LATE_TURN_COUNT


@pytest.mark.parametrize("read", [True, False], ids=["a message stands behind it", "its messages wait"])
async def test_FinalizeRun__after_a_takeover_late_turns_are_granted_too(
    mesh: Judged, keys: Path, tmp_path: Path, read: bool
) -> None:
    mesh.write(saying("Early."))
    if read:
        mesh.write(text_message(USER, "One more thing."))
    else:
        mesh.late = ["One more thing."]
    mesh.answers.append(saying("At last."))
    await execute_run(mesh, keys, tmp_path, epoch=2, max_turns=1)
    assert mesh.failed is None
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "At last."


async def test_FailRun__a_takeover_grants_no_additional_late_turns(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    for number in range(1 + LATE_TURN_COUNT - 1):
        mesh.write(saying(f"Draft {number}."))
        mesh.write(text_message(USER, "One more thing."))
    mesh.late = [str(number) for number in range(20)]
    mesh.answers.extend([saying("Again.")] * 20)
    await execute_run(mesh, keys, tmp_path, epoch=2, max_turns=1)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert len(mesh.prompts) == 1


async def test_FailRun__tool_calls_in_the_last_turn_get_no_late_turns(
    mesh: Judged, keys: Path, tmp_path: Path
) -> None:
    """It stays so if messages arrive and another runner takes over."""
    mesh.write(calling(("c1", "list_files", "{}")))
    mesh.inbox.append(pb.InboxMessage(key="message:v1:m", text="One more thing."))
    await execute_run(mesh, keys, tmp_path, epoch=2, max_turns=1)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert mesh.prompts == []
