"""The tool `fetch_files`, and files by reference, between the real services."""

import json
import re
from pathlib import Path

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings

from tests.support.runner.real_services import (
    Among,
    Messages,
    Move,
    Said,
    open_among,
    results_in,
    set_in,
    text_of,
)
from tests.support.session.harness import OpenMesh
from tests.support.session.outputs import RELEASED, listed
from tests.support.waiting import eventually

MIB = 1024 * 1024
REPORT = "The answer is 42.\n"
NO_SET = "att_" + "0" * 26


def spawned(agent_id: str, *attachments: dict[str, str]) -> Said:
    return "sessions_spawn", {"task": "Go.", "agent_id": agent_id, "attachments": list(attachments)}


def waited(messages: Messages) -> Said:
    """Wait for the child that was spawned last."""
    [*_, session_id] = re.findall(r'"session_id": "(ses_[0-9a-z]{26})"', "\n".join(results_in(messages)))
    return "sessions_wait", {"session_ids": [session_id], "timeout_seconds": 120}


def fetched(messages: Messages) -> Said:
    return "fetch_files", {"set_id": set_in(messages)}


def read(messages: Messages) -> Said:
    """Read the report in the directory that the newest result names."""
    rel_dir = json.loads(results_in(messages)[-1])["rel_dir"]
    return "read_file", {"path": f"{rel_dir}/report.md"}


def handed(messages: Messages) -> Said:
    """Give the child's report to a checker, under another name."""
    return spawned("checker", {"set_id": set_in(messages), "name": "report.md", "new_name": "to-check.md"})


async def put_maker(among: Among) -> None:
    """Create the agent that publishes a report."""
    await among.put(
        "maker",
        ("write_file", {"path": "report.md", "content": REPORT}),
        ("publish_files", {"paths": ["report.md"]}),
        "It is published.",
    )


async def test_a_parent_reads_what_its_child_published_and_hands_it_to_another_child(among: Among) -> None:
    def open_attached(messages: Messages) -> Said:
        everything = "\n".join(map(text_of, messages))
        [*_, rel_dir] = re.findall(r"\.spawnmesh/attachments/att_[0-9a-z]{26}", everything)
        return "read_file", {"path": f"{rel_dir}/to-check.md"}

    await put_maker(among)
    await among.put("checker", open_attached, "It is right.")
    await among.put("lead", spawned("maker"), waited, fetched, read, handed, waited, "Done.")
    async with among.start_runner():
        session = await among.run("lead")
    _, _, fetch, reading, spawn, _ = among.results("lead")
    answer = json.loads(fetch)
    assert answer["rel_dir"] == f".spawnmesh/attachments/{answer['set_id']}"
    assert [(one["name"], one["bytes"]) for one in answer["files"]] == [("report.md", len(REPORT))]
    assert "untrusted input" in answer["note"]
    assert reading.endswith(REPORT)
    receipt = json.loads(spawn)["receipt"]
    assert [(one["name"], one["sha256"]) for one in receipt["files"]] == [
        ("to-check.md", answer["files"][0]["sha256"])
    ]
    assert receipt["rel_dir"] != answer["rel_dir"], "the child has files of its own"
    assert among.results("checker")[-1].endswith(REPORT)
    assert await listed(among.mesh, session.session_id) == []


async def test_a_set_that_is_fetched_again_is_there_as_it_was_published(among: Among) -> None:
    """Also if a file of it was changed, and if the model made a file in its place."""

    def changed(messages: Messages) -> Said:
        rel_dir = json.loads(results_in(messages)[-1])["rel_dir"]
        return "write_file", {"path": f"{rel_dir}/report.md", "content": "The answer is 43.\n"}

    def occupied(messages: Messages) -> Said:
        path = f".spawnmesh/attachments/{set_in(messages)}/other.md"
        return "write_file", {"path": path, "content": "x"}

    write = "write_file", {"path": "report.md", "content": REPORT}
    publish = "publish_files", {"paths": ["report.md"]}
    await among.put("writer", write, publish, occupied, fetched, fetched, changed, fetched, read, "Done.")
    async with among.start_runner():
        await among.run("writer")
    _, _, _, first, second, _, third, reading = among.results("writer")
    assert first == second == third
    assert reading.endswith(REPORT)


async def test_only_sets_of_the_family_are_fetched_or_handed_over(among: Among) -> None:
    """A sibling's and an unrelated session's sets are not found, and nor is one that never was."""
    await put_maker(among)
    async with among.start_runner():
        maker = await among.run("maker")
        [unrelated] = await listed(among.mesh, maker.session_id)
        sibling: list[str] = []

        def of_sibling(_messages: Messages) -> Said:
            return "fetch_files", {"set_id": sibling[0]}

        def hand_sibling(_messages: Messages) -> Said:
            return spawned("maker", {"set_id": sibling[0], "name": "report.md"})

        def spawn_stranger(messages: Messages) -> Said:
            sibling.append(set_in(messages))
            return spawned("stranger")

        await among.put(
            "stranger",
            of_sibling,
            hand_sibling,
            ("fetch_files", {"set_id": unrelated.set_id}),
            spawned("maker", {"set_id": unrelated.set_id, "name": "report.md"}),
            ("fetch_files", {"set_id": NO_SET}),
            "Done.",
        )
        await among.put(
            "lead",
            spawned("maker"),
            waited,
            lambda messages: spawned("maker", {"set_id": set_in(messages), "name": "none.md"}),
            spawn_stranger,
            waited,
            "Done.",
        )
        await among.run("lead")
    texts = among.results("stranger")
    reasons = [text.partition(":")[0] for text in texts]
    assert reasons == ["NOT_FOUND", "SPAWN_FAILED", "NOT_FOUND", "SPAWN_FAILED", "NOT_FOUND"]
    assert texts[1].startswith(f'SPAWN_FAILED: "report.md" of {sibling[0]}: ')
    assert f"there is no attachment set {sibling[0]}" in texts[1]
    assert f"there is no attachment set {unrelated.set_id}" in texts[3]
    assert among.results("lead")[2].startswith('SPAWN_FAILED: "none.md" of att_')


async def test_a_set_of_a_deleted_child_can_no_longer_be_fetched(among: Among) -> None:
    async def delete_child(messages: Messages) -> Said:
        [*_, child] = re.findall(r"ses_[0-9a-z]{26}", results_in(messages)[0])
        set_id = set_in(messages)
        request = session_pb.DeleteSessionRequest(session_id=child)
        await among.mesh.client(among.mesh.sessions.DeleteSession, request)

        async def is_released() -> bool:
            return (await among.blobs.get(set_id)).state == RELEASED

        await eventually(is_released)
        return "fetch_files", {"set_id": set_id}

    await put_maker(among)
    await among.put("checker", "There is nothing.")
    await among.put("lead", spawned("maker"), waited, delete_child, handed, "Done.")
    async with among.start_runner():
        await among.run("lead")
    _, _, fetch, spawn = among.results("lead")
    assert fetch.startswith("ATTACHMENT_SET_STATE: the files of this set can no longer be read")
    assert re.match(r'ATTACHMENT_SET_STATE: "report\.md" of att_[0-9a-z]{26}: attachment set ', spawn)


async def test_a_set_that_the_workspace_has_no_room_for_is_refused_with_numbers(
    open_mesh: OpenMesh, peers: dict[str, str], keys: Path, tmp_path: Path, empty_queue: None
) -> None:
    """The bytes of a set pass through a copy, so it may take half of the workspace."""
    limits = AttachmentLimits(enabled=True, max_file_count=5, max_file_bytes=4 * MIB, max_total_bytes=4 * MIB)
    settings = TenantSettings(attachments=limits)
    sizes = {"too-large": MIB // 2 + 1, "large": 300 * 1024}
    async with open_among(
        open_mesh, peers, keys, tmp_path, settings, max_workspace_bytes=MIB, max_runs=1
    ) as among:

        def made(name: str) -> Move:
            def make(_messages: Messages) -> Said:
                (among.workspace / name).write_bytes(bytes(sizes[name]))
                return "publish_files", {"paths": [name]}

            return make

        def emptied(_messages: Messages) -> Said:
            (among.workspace / "too-large").unlink()
            return "fetch_files", {"set_id": "att_1"}

        await among.put(
            "writer", made("too-large"), fetched, made("large"), fetched, emptied, fetched, "Done."
        )
        async with among.start_runner():
            await among.run("writer")
        _, too_large, _, full, _, fits = among.results("writer")
    assert too_large.startswith(f"TOO_LARGE: the files have {MIB // 2 + 1} bytes, and a workspace has room")
    assert str(MIB // 2) in too_large
    assert full.startswith("WORKSPACE_FULL: the workspace has no room for ")
    assert f"all files together may have {MIB} bytes" in full
    assert json.loads(fits)["total_bytes"] == 300 * 1024
