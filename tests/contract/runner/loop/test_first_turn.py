"""The first turn of a run asks nothing that the claim has just said."""

import time
from pathlib import Path

import pytest
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_runner.loop import agent_loop

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


async def execute_run(mesh: ScriptedMesh, keys: Path, folder: Path) -> None:
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized)


@pytest.fixture
def _trust_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a claim be fresh for longer than a run takes on a busy machine."""
    monkeypatch.setattr(agent_loop, "_FRESH_SECONDS", 600.0)


@pytest.mark.usefixtures("_trust_is_long")
async def test_claim_without_hooks_and_messages_is_believed_in_the_first_turn(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    await execute_run(mesh, keys, tmp_path)
    assert (mesh.hooks.list_count, mesh.inbox_read_count) == (0, 0)


@pytest.mark.usefixtures("_trust_is_long")
async def test_later_turns_ask(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    """A plugin and a message that come during the first turn are noticed in the second one."""

    def come() -> None:
        mesh.hooks.active = [events.HOOK_KIND_BEFORE_PROMPT_BUILD]
        mesh.inbox.append(pb.InboxMessage(key="m1", text="And now?"))
        mesh.on_generate = lambda: None

    mesh.on_generate = come
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("Done.")])
    await execute_run(mesh, keys, tmp_path)
    assert len(mesh.hooks.asked) == 1
    assert mesh.prompts[1].messages[-1].content[0].text.text == "And now?"


@pytest.mark.usefixtures("_trust_is_long")
@pytest.mark.parametrize("has_hook", [True, False], ids=["hook", "message"])
async def test_what_the_claim_names_is_read_and_nothing_else(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, *, has_hook: bool
) -> None:
    if has_hook:
        mesh.hooks.active = [events.HOOK_KIND_LLM_OUTPUT]
    else:
        mesh.inbox.append(pb.InboxMessage(key="m1", text="And now?"))
    mesh.answers.append(saying("Done."))
    await execute_run(mesh, keys, tmp_path)
    assert (mesh.hooks.list_count > 0, mesh.inbox_read_count > 0) == (has_hook, not has_hook)
    assert len(mesh.hooks.published) == has_hook
    assert len(mesh.prompts[0].messages) == (1 if has_hook else 2)


async def test_old_claim_is_not_believed(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a session can take long before the first turn."""
    monkeypatch.setattr(agent_loop, "_FRESH_SECONDS", 0.05)
    mesh.files["a.txt"] = b"text"
    mesh.on_read_file = lambda: time.sleep(0.1)
    mesh.answers.append(saying("Done."))
    await execute_run(mesh, keys, tmp_path)
    assert (mesh.hooks.list_count, mesh.inbox_read_count) == (1, 1)
