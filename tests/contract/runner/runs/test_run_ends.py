"""A runner among scripted peers: takeovers, lost leases, failures and shutdown."""

import asyncio
import os
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, transient_fact, unavailable
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

USER, ASSISTANT, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
SPAWN_CALL = ("c1", "sessions_spawn", '{"task": "t"}')


def away(count: int) -> deque[MeshError]:
    return deque(unavailable("peer", retry_after_seconds=0.01) for _ in range(count))


def workspaces(root: Path) -> list[str]:
    return os.listdir(root)


async def test_FinalizeRun__an_earlier_runners_draft_is_offered_without_a_model_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    draft_id = mesh.write(saying("Done before the crash."))
    mesh.queue_run(epoch=2)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.finalized is not None
    assert (mesh.finalized.draft_entry_id, mesh.finalized.draft_text) == (draft_id, "Done before the crash.")
    assert mesh.finalized.usage.input_token_count == 10
    assert mesh.prompts == []


async def test_FinalizeRun__a_draft_of_the_last_turn_is_offered_by_the_next_runner(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    draft_id = mesh.write(saying("Done before the crash."))
    mesh.queue_run(epoch=2, max_turns=1)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert mesh.finalized is not None
    assert mesh.finalized.draft_entry_id == draft_id


async def test_SpawnSession__a_call_interrupted_by_a_takeover_spawns_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = deque(
        [MeshError(Reason.RUN_LEASE_LOST, "taken over")]
    )  # It was stored, but the response was lost.
    mesh.answers.extend([calling(SPAWN_CALL), saying("Spawned.")])
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.spawns and not workspaces(tmp_path))
        assert mesh.messages(RESULT) == []
        mesh.queue_run(epoch=2, tools=("sessions_spawn",))
        await eventually(lambda: mesh.finalized)
    assert mesh.failed is None
    assert len(mesh.spawn_traces) == 2
    assert len(mesh.spawns) == 1
    [result] = mesh.messages(RESULT)
    assert (result.tool_call_id, result.is_error) == ("c1", False)


async def test_ListInbox__a_redelivered_message_is_appended_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.inbox = [
        pb.InboxMessage(key="announce:v1:a:b", text="Child says hi."),
        pb.InboxMessage(key="m2", text="Hurry."),
    ]
    mesh.refusals["AcknowledgeInbox"] = deque([MeshError(Reason.RUN_LEASE_LOST, "taken over")])
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: len(mesh.entries) == 3 and not workspaces(tmp_path))
        assert len(mesh.inbox) == 2
        mesh.queue_run(epoch=2)
        await eventually(lambda: mesh.finalized)
    assert [message.content[0].text.text for message in mesh.prompts[0].messages] == [
        "Do it.",
        "Child says hi.",
        "Hurry.",
    ]
    assert mesh.inbox == []


async def test_ListInbox__is_called_until_the_inbox_is_empty(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.inbox = [pb.InboxMessage(key=f"m{n}", text=f"Large {n}.") for n in range(5)]
    mesh.inbox_page = 2
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    texts = [message.content[0].text.text for message in mesh.prompts[0].messages]
    assert texts == ["Do it.", *(f"Large {n}." for n in range(5))]


async def test_AppendEntries__an_answer_whose_response_was_lost_is_stored_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["AppendEntries"] = away(4)
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized and not workspaces(tmp_path))
    assert mesh.released_claims == []  # The session service releases the claim of a run that ended.
    assert len(mesh.messages(ASSISTANT)) == 1
    assert len(mesh.prompts) == 1


async def test_HeartbeatRun__a_lost_lease_stops_the_run_at_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(mesh.model_called.is_set)
        assert workspaces(tmp_path) == [f"{mesh.session_id}-1"]
        mesh.lease_lost = True
        await eventually(lambda: mesh.model_cancelled and not workspaces(tmp_path))
        await eventually(lambda: mesh.released_claims)
    assert (mesh.failed, mesh.released, mesh.finalized, mesh.released_claims) == (None, [], None, [1])


async def test_HeartbeatRun__a_lease_not_renewed_in_time_is_lost(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run(lease_seconds=2.0)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.refusals["HeartbeatRun"] = away(1000)
        await eventually(lambda: mesh.model_cancelled and not workspaces(tmp_path))
        await eventually(lambda: mesh.released)
    assert (mesh.failed, mesh.released) == (None, [1])


async def test_HeartbeatRun__transient_refusals_keep_the_lease(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.refusals["HeartbeatRun"] = away(2)
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: not mesh.refusals["HeartbeatRun"])
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)


async def test_AcquireWriter__a_later_writer_stops_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.writer_epoch = 7
    mesh.answers.append(saying("Unheard."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.queue.empty)
        await eventually(lambda: not workspaces(tmp_path))
    assert (mesh.failed, mesh.released, mesh.prompts) == (None, [], [])


@pytest.mark.parametrize("reason", [Reason.ALL_CANDIDATES_FAILED, Reason.MODEL_REFUSED, Reason.UNKNOWN_MODEL])
async def test_FailRun__has_the_routers_reason(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, reason: Reason
) -> None:
    mesh.answers.extend([MeshError(reason, "no answer"), saying("Never asked.")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
        await eventually(lambda: not workspaces(tmp_path) and mesh.released_claims)
    assert mesh.failed is not None
    assert (mesh.failed.reason, mesh.failed.message) == (reason_number(reason), "no answer")
    assert len(mesh.prompts) == 1


@pytest.mark.parametrize(
    ("broken_count", "is_transient", "ending"),
    [(1, False, "finalized"), (2, False, "failed"), (1, True, "finalized"), (2, True, "delays")],
)
async def test_Generate__a_broken_stream_is_retried_once_and_then_the_run_waits_if_that_can_help(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, broken_count: int, is_transient: bool, ending: str
) -> None:
    broken = MeshError(Reason.STREAM_BROKEN, "broken", facts={TRANSIENT_FACT: transient_fact(is_transient)})
    mesh.answers.extend([*[broken] * broken_count, saying("Done.")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: getattr(mesh, ending))
    assert len(mesh.prompts) == 2
    assert len(mesh.messages(ASSISTANT)) == 2 - broken_count


async def test_FailRun__a_run_without_turns_left(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    first_answer_id = mesh.write(calling(("c0", "list_files", "{}")))
    mesh.answers.extend([calling(("c1", "list_files", "{}"))] * 3)
    mesh.queue_run(epoch=2, tools=("list_files",), max_turns=3)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_TURN_LIMIT_EXCEEDED
    assert mesh.failed.usage.output_token_count == 6
    assert len(mesh.prompts) == 2, "the turn before the takeover counts"
    assert mesh.entries[2].body.message.tool_call_id == "c0", (
        "what the earlier runner left open is answered first"
    )
    assert first_answer_id == mesh.entries[1].entry_id


async def test_FailRun__attachments_with_a_wrong_hash(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    class Rotting(dict[str, bytes]):
        """Serve other bytes than the manifest lists."""

        def __getitem__(self, name: str) -> bytes:
            return super().__getitem__(name)[::-1]

    mesh.files = Rotting({"a.txt": b"abc"})
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
        await eventually(lambda: not workspaces(tmp_path))
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_ATTACHMENTS_MATERIALIZATION_FAILED
    assert str(tmp_path) not in mesh.failed.message
    assert mesh.prompts == []


async def test_FailRun__an_internal_error_hides_content_and_paths(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mesh.queue_run()
    async with running_runner(mesh, keys, root):
        root.rmdir()
        root.write_text("no directory")
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_RUNNER_ERROR
    assert str(tmp_path) not in mesh.failed.message


async def test_ClaimRuns__an_unavailable_session_service_is_retried(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["ClaimRuns"] = away(3)
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)


async def test_ClaimRuns__claims_no_more_runs_than_max_runs(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.answers.extend([saying("One."), saying("Two.")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, max_runs=2, claim_wait_seconds=0.05):
        await eventually(lambda: mesh.model_called.is_set() and mesh.claim_sizes[-1] == 1)
        assert mesh.claim_sizes[0] == 2
        mesh.queue_run(epoch=2)
        await eventually(lambda: len(mesh.prompts) == 2)
        claim_count = len(mesh.claim_sizes)
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized and mesh.finalized.epoch == 2)
        await eventually(lambda: mesh.claim_sizes[claim_count:] and mesh.claim_sizes[-1] == 2)
    assert min(mesh.claim_sizes) == 1


async def test_ClaimRuns__a_runner_keeps_a_place_for_newcomers(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with running_runner(mesh, keys, tmp_path, max_runs=8, claim_wait_seconds=0.05):
        await eventually(lambda: mesh.reserved)
    assert set(mesh.reserved) == {1}


async def test_ClaimRuns__a_claim_for_newcomers_alone_does_not_wait(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """Otherwise the places of runs that end meanwhile would stay free."""
    mesh.hold_model = asyncio.Event()
    mesh.answers.append(saying("One."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, max_runs=2, reserved_runs=1, claim_wait_seconds=50):
        await eventually(lambda: mesh.claim_sizes[1:])
        mesh.hold_model.set()
        await eventually(lambda: mesh.claim_sizes[-1] == 2)
    waits = set(zip(mesh.claim_sizes, mesh.claim_waits, strict=True))
    assert waits == {(1, 0), (2, 50)}


async def test_ReleaseRun__a_run_that_outlasts_the_grace_is_released(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, drain_grace_seconds=0.1):
        await eventually(mesh.model_called.is_set)
    assert (mesh.released, mesh.released_claims) == ([1], [1])
    assert mesh.model_cancelled
    assert workspaces(tmp_path) == []
    assert mesh.failed is None


async def test_ReleaseRun__a_run_that_ends_within_the_grace_is_not_released(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hold_model = asyncio.Event()
    mesh.answers.append(saying("Just in time."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, drain_grace_seconds=30):
        await eventually(mesh.model_called.is_set)
        asyncio.get_running_loop().call_later(0.1, mesh.hold_model.set)
    assert mesh.finalized is not None
    assert mesh.released == []


async def test_serve__stops_cleanly_on_SIGTERM(keys: Path, tmp_path: Path) -> None:
    targets = {
        f"RUNNER_{name}_TARGET": "127.0.0.1:1"
        for name in ("SESSION", "TRANSCRIPT", "MODEL_ROUTER", "ATTACHMENT_BLOB", "HOOK")
    }
    environment: dict[str, Any] = {
        **os.environ,
        **targets,
        "RUNNER_WORKSPACE_ROOT": str(tmp_path / new_id(IdKind.SESSION)),
        "RUNNER_JWKS_FILE": str(keys / "jwks.json"),
        "RUNNER_SIGNING_KEY_FILE": str(keys / "runner.pem"),
    }
    runner = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spawnmesh_runner", "serve", env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert runner.stdout is not None
    async with asyncio.timeout(60):
        while b'"serving"' not in (line := await runner.stdout.readline()):
            assert line, "it ended before it served"
        runner.send_signal(signal.SIGTERM)
        rest = await runner.stdout.read()
        assert await runner.wait() == 0
    assert b"claiming_stopped" in rest
    assert b"Traceback" not in rest
