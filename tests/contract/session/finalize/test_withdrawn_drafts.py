"""A run that ends otherwise leaves no transcript that labels its decided draft final."""

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.app import make_sweeper

from tests.support.serving import caller_at
from tests.support.session.calls import offer
from tests.support.session.crashing import Crash
from tests.support.session.drafting import draft
from tests.support.session.finalizing import die, finalize_beside, labels_of
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of, work_once

End = Callable[[Mesh, run_pb.ClaimedRun, Remains], Awaitable[None]]


async def timed_out(mesh: Mesh, held: run_pb.ClaimedRun, remains: Remains) -> None:
    over = "update session.run_queue set expire_time = now() where tenant_id = %s and run_id = %s"
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        await superuser.execute(over, (mesh.tenant, held.run.run_id))
    async with components_of(mesh.settings) as components:
        while await make_sweeper(components, mesh.settings).end_lost_runs():
            pass


async def failed(mesh: Mesh, held: run_pb.ClaimedRun, _remains: Remains) -> None:
    await mesh.run(
        held,
        mesh.runs.FailRun,
        run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
    )


async def killed(mesh: Mesh, held: run_pb.ClaimedRun, _remains: Remains) -> None:
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=held.session.session_id))


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (timed_out, session_pb2.RUN_STATE_TIMED_OUT),
        (failed, session_pb2.RUN_STATE_FAILED),
        (killed, session_pb2.RUN_STATE_KILLED),
    ],
    ids=["timed out", "failed", "killed"],
)
async def test_FinalizeRun__draft_called_final_is_superseded_where_its_run_ends_otherwise(
    mesh: Mesh, transcript: Peer, remains: Remains, end: End, state: Any
) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]
    await end(mesh, held, remains)
    assert (await mesh.get(session.session_id)).latest_run.state == state
    for _ in range(2):
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        labels = await labels_of(transcript, held, offered.draft_entry_id)
        assert labels == [LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED]


async def test_FinalizeRun__run_after_a_withdrawn_draft_has_the_transcript(
    mesh: Mesh, transcript: Peer, remains: Remains
) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    await failed(mesh, held, remains)
    request = pb.SendMessageRequest(session_id=session.session_id, request_id="again", text="again")
    await mesh.client(mesh.sessions.SendMessage, request)
    later = await mesh.claim(session.session_id)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    box = await mesh.run(later, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    taken = run_pb.AcknowledgeInboxRequest(
        epoch=later.run.epoch, keys=[message.key for message in box.messages]
    )
    await mesh.run(later, mesh.runs.AcknowledgeInbox, taken)
    answer = await draft(transcript, later, "43")
    assert (await offer(mesh, later, answer)).accepted.run.result_text == "43"
    assert await labels_of(transcript, later, offered.draft_entry_id) == [
        LABEL_KIND_FINAL,
        LABEL_KIND_SUPERSEDED,
    ]
    assert await labels_of(transcript, later, answer.draft_entry_id) == [LABEL_KIND_FINAL]
