"""On every path of a run, its plugins receive exactly the hooks that belong to it, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_client.turn_messages import text_message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.loop.agent_loop import run_agent_loop
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Tool
from spawnmesh_runner.tools.list_files import LIST_FILES
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.serving import served, shared_settings
from tests.support.waiting import eventually

BEFORE_MODEL = ["before_model_resolve", "before_prompt_build", "llm_input"]
MODEL = [*BEFORE_MODEL, "llm_output"]
CALL = ["before_tool_call", "after_tool_call"]
LIST = ("c1", "list_files", "{}")


@pytest.fixture
def mesh(mesh: ScriptedMesh) -> ScriptedMesh:
    """Return the mesh with a subscriber of every hook."""
    mesh.hooks.active = [kind for _, kind in events.HookKind.items() if kind]
    return mesh


async def execute_run(mesh: ScriptedMesh, keys: Path, folder: Path) -> list[str]:
    """Execute the run and return the dispatched and published hooks, in order."""
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)
    return mesh.hooks.order


def errors(mesh: ScriptedMesh) -> list[str]:
    """Return the error reasons of the published tool outcomes; empty for calls that succeeded."""
    outcomes = [event for event in mesh.hooks.published if event.HasField("after_tool_call")]
    return [event.after_tool_call.error_reason for event in outcomes]


async def test_hooks_of_a_run_with_a_tool_call(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.answers.extend([calling(LIST), saying("done")])
    mesh.queue_run(tools=("list_files",))
    assert await execute_run(mesh, keys, tmp_path) == [*MODEL, *CALL, *MODEL]
    assert errors(mesh) == [""]


@pytest.mark.parametrize(
    ("call", "reason", "order"),
    [
        (("c1", "list_files", '{"path":"nowhere"}'), "NOT_FOUND", CALL),
        (("c1", "list_files", '{"unknown":1}'), "INVALID_ARGUMENTS", CALL),
        (("c1", "no_such_tool", "{}"), "UNKNOWN_TOOL", ["after_tool_call"]),
    ],
)
async def test_hooks_of_a_failed_tool_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, call: tuple[str, str, str], reason: str, order: list[str]
) -> None:
    mesh.answers.extend([calling(call), saying("done")])
    mesh.queue_run(tools=("list_files",))
    assert await execute_run(mesh, keys, tmp_path) == [*MODEL, *order, *MODEL]
    assert errors(mesh) == [reason]


async def test_hooks_of_a_failed_model_call(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.answers.append(MeshError(Reason.ALL_CANDIDATES_FAILED, "nobody answers"))
    mesh.queue_run()
    assert await execute_run(mesh, keys, tmp_path) == BEFORE_MODEL
    assert mesh.failed is not None


@pytest.mark.parametrize("asked", ["model", "prompt"])
async def test_a_failed_closed_plugin_fails_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, asked: str
) -> None:
    setattr(mesh.hooks, asked, MeshError(Reason.PLUGIN_FAILED, "plugin gate gave no valid answer"))
    mesh.queue_run()
    order = await execute_run(mesh, keys, tmp_path)
    assert order == BEFORE_MODEL[: 1 if asked == "model" else 2]
    assert mesh.prompts == []
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_PLUGIN_FAILED


async def test_hooks_of_a_run_killed_during_a_model_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(mesh.model_called.is_set)
        mesh.lease_lost = True
        await eventually(lambda: mesh.model_cancelled)
    assert mesh.hooks.order == BEFORE_MODEL
    assert (mesh.failed, mesh.finalized) == (None, None)


async def test_hooks_of_a_run_claimed_again_during_a_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    entry_id = mesh.write(calling(LIST, ("c2", "no_such_tool", "{}")), epoch=1)
    mesh.answers.append(saying("done"))
    mesh.queue_run(tools=("list_files",), epoch=2)
    assert await execute_run(mesh, keys, tmp_path) == [*CALL, "after_tool_call", *MODEL]
    published_keys = [event.event_key for event in mesh.hooks.published if event.HasField("after_tool_call")]
    assert published_keys == [f"after_tool_call:v1:{entry_id}:{index}" for index in (0, 1)]


async def test_hooks_of_a_run_claimed_again_with_a_draft(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(saying("done"), epoch=1)
    mesh.queue_run(epoch=2)
    assert await execute_run(mesh, keys, tmp_path) == []
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "done"


class Payment(Arguments):
    """Arguments of a tool that must not be called twice."""


async def pay(_scope: CallScope, _arguments: Payment) -> dict[str, object]:
    return {"paid": True}


PAY = Tool("pay", "Pays.", Payment, pay, idempotent=False)


@asynccontextmanager
async def assigned(
    mesh: ScriptedMesh, keys: Path, workspace: Path, *, epoch: int
) -> AsyncIterator[Assignment]:
    """Open the claimed run with a tool that is not built in."""

    @asynccontextmanager
    async def peers(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        mesh.add_to(server)
        yield server

    mesh.queue_run(epoch=epoch)
    claimed = await mesh.queue.get()
    async with served("session", ProcessSettings(**shared_settings("session", keys)), peers) as target:
        targets: dict[str, Any] = {
            f"{peer}_target": target
            for peer in ("session", "transcript", "model_router", "attachment_blob", "hook")
        }
        settings = RunnerSettings(**shared_settings("runner", keys), **targets, workspace_root=workspace)
        async with start_process("runner", settings) as process, open_peers(process, settings) as opened:
            with use_token(claimed.run_token):
                yield Assignment(
                    claimed=claimed,
                    peers=opened,
                    workspace=workspace,
                    max_workspace_bytes=settings.max_workspace_bytes,
                    tools={"pay": PAY, "list_files": LIST_FILES},
                    generate_timeout_seconds=60,
                )


@pytest.mark.parametrize(
    ("tool", "has_final_effects"), [("pay", True), ("list_files", False), ("no_such_tool", False)]
)
async def test_a_draft_reports_final_effects(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, tool: str, has_final_effects: bool
) -> None:
    mesh.answers.extend([calling(("c1", tool, "{}")), saying("done")])
    async with assigned(mesh, keys, tmp_path, epoch=1) as assignment:
        await run_agent_loop(assignment)
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects is has_final_effects


async def test_an_unrepeatable_call_of_a_lost_runner_is_an_unknown_outcome_and_a_final_effect(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(calling(("c1", "pay", "{}")), epoch=1)
    mesh.answers.append(saying("done"))
    async with assigned(mesh, keys, tmp_path, epoch=2) as assignment:
        await run_agent_loop(assignment)
    assert mesh.hooks.order == ["after_tool_call", *MODEL]
    assert errors(mesh) == ["OUTCOME_UNKNOWN"]
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects


async def test_an_unrepeatable_call_that_no_runner_has_begun_is_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """A result is stored before the next call is made, so only the first open call can have run."""
    mesh.write(calling(("c1", "pay", "{}"), ("c2", "pay", "{}")), epoch=1)
    mesh.answers.append(saying("done"))
    async with assigned(mesh, keys, tmp_path, epoch=2) as assignment:
        await run_agent_loop(assignment)
    assert errors(mesh) == ["OUTCOME_UNKNOWN", ""]


@pytest.mark.parametrize("epoch", [1, 2])
async def test_final_effects_outlast_later_messages(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, epoch: int
) -> None:
    """A second runner knows it too, from what the first one wrote."""
    said = text_message(message_pb2.ROLE_USER, "And now?")
    if epoch == 1:
        mesh.answers.append(calling(("c1", "pay", "{}")))
        mesh.on_generate = lambda: mesh.inbox.append(run_pb.InboxMessage(key="m1", text="And now?"))
    else:
        mesh.write(calling(("c1", "pay", "{}")), epoch=1)
        mesh.write(answered("c1", "pay"), epoch=1)
        mesh.write(said, epoch=0)
    mesh.answers.append(saying("done"))
    async with assigned(mesh, keys, tmp_path, epoch=epoch) as assignment:
        await run_agent_loop(assignment)
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects


def answered(call_id: str, tool: str) -> message_pb2.Message:
    message = text_message(message_pb2.ROLE_TOOL_RESULT, "{}")
    message.tool_call_id, message.tool_name = call_id, tool
    return message
