"""A fork on a mesh is compared with the session that it was forked from."""

import json
import os
from uuid import uuid4

import pytest
from spawnmesh_client import Attachment, Mesh, NotFound, Session, SessionMode, connect
from spawnmesh_client.views import ForkPoint
from spawnmesh_devstack.stack import Stack

from tests.support.commands import Commands
from tests.support.mesh.both_meshes import real, said, tenant

__all__ = ["real", "tenant"]

LONG = "word " * 30_000
"""More tokens than a fork copies."""


async def seqs_of(session: Session, role: str) -> list[int]:
    return [entry.seq async for entry in session.transcript() if entry.role == role]


async def test_fork_differs_from_its_source_behind_the_entry(
    real: Mesh, commands: Commands, stack: Stack, tenant: str
) -> None:
    source = await real.spawn("Say hello.", attachments=[Attachment("a.txt", b"1")], mode=SessionMode.SESSION)
    await source.result(timeout=60)
    _, answered = await seqs_of(source, "ASSISTANT")  # The first one calls a tool.
    await source.send("Go on.")
    await source.result(timeout=60)
    fork = await real.spawn("Stop.", fork_of=source, fork_at_seq=answered)
    await fork.result(timeout=60)

    found = await real.diff(source, fork)
    assert found.forked_at == ForkPoint(source.session_id, answered)
    assert (found.common_message_count, found.common_seq_a, found.common_seq_b) == (4, answered, 5)
    listed = (await source.refresh()).latest_run
    assert listed is not None
    assert [one.text for one in found.only_a] == ["Go on.", listed.result_text]
    assert [one.text for one in found.only_b] == ["Stop.", said("Stop.")]
    assert (found.answer_a, found.answer_b, found.left_out_count) == (listed.result_text, said("Stop."), 0)
    assert (await real.diff(source, source)).is_equal

    options = ("--data", str(stack.data_dir), "--tenant", tenant)
    diff = ("session", "diff", source.session_id, fork.session_id, "--exit-code")
    code, printed, errors = await commands.run(*options, *diff, env=os.environ)
    assert (code, errors) == (1, "")
    assert f"\nB was forked from A at entry {answered}\n" in printed
    assert f"\n+ {said('Stop.')}\n" in printed
    code, printed, _ = await commands.run(*options, *diff, "--json", env=os.environ)
    document = json.loads(printed)
    assert (code, document["common_count"], len(document["only_b"])) == (1, 4, 2)
    assert document["usage_a"]["session"]["ended_run_count"] == "2"


async def test_sessions_of_the_same_task_and_files_are_the_same(real: Mesh) -> None:
    """Their notes and lists of files name other directories, which have the ids of the sets."""
    files = [Attachment("a.txt", b"1")]
    one, other = [await real.spawn("Say hello.", attachments=files) for _ in range(2)]
    for session in (one, other):
        await session.result(timeout=60)
    found = await real.diff(one, other)
    assert (found.is_equal, found.common_count, found.common_message_count) == (True, 5, 4)


async def test_fork_of_a_long_session_begins_behind_its_first_messages(real: Mesh) -> None:
    source = await real.spawn(LONG, mode=SessionMode.SESSION)
    await source.result(timeout=60)
    await source.send("Go on.")
    await source.result(timeout=60)
    newest = (await seqs_of(source, "ASSISTANT"))[-1]
    fork = await real.spawn("Stop.", fork_of=source, fork_at_seq=newest)
    found = await real.diff(fork, source)
    assert (found.common_count, found.left_out_count, found.only_b) == (3, 1, ())
    assert found.only_a[0].text == "Stop."


async def test_session_of_another_tenant_is_not_found(real: Mesh, stack: Stack) -> None:
    theirs = await real.spawn("Say hello.")
    stranger = f"t-{uuid4().hex[:12]}"
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(stranger)
    targets = {name: stack.targets[name] for name in ("session", "transcript")}
    async with connect(targets=targets, token=stack.client_token(stranger)) as mesh:
        own = await mesh.spawn("Say hello.")
        for pair in ((own, theirs.session_id), (theirs.session_id, own)):
            with pytest.raises(NotFound):
                await mesh.diff(*pair)
