"""A run ends when its model makes the same calls again and again and gets the same results."""

from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SAME = (("list_files", "{}"), ("read_file", '{"path": "none.txt"}'))


def _call(turn: int, *calls: tuple[str, str]) -> message_pb2.Message:
    return calling(*((f"t{turn}-{index}", *call) for index, call in enumerate(calls)))


async def test_FailRun__the_third_repeat_of_the_same_calls(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend(_call(turn, *SAME) for turn in range(10))
    mesh.queue_run(tools=("list_files", "read_file"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_NO_PROGRESS
    assert "list_files, read_file" in mesh.failed.message
    assert len(mesh.prompts) == 4


async def test_FinalizeRun__calls_that_are_repeated_with_others_between(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    other = ("list_files", '{"path": "."}')
    for turn in range(0, 12, 4):
        mesh.answers.extend(_call(turn + repeat, *SAME) for repeat in range(3))
        mesh.answers.append(_call(turn + 3, other))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=("list_files", "read_file"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None


async def test_FinalizeRun__the_same_calls_with_other_results(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend(_call(turn, ("sessions_spawn", '{"task": "again"}')) for turn in range(6))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    results = [message.content[0].text.text for message in mesh.messages(message_pb2.ROLE_TOOL_RESULT)]
    assert len(set(results)) == 6
