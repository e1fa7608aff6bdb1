"""The delivered text is the text that plugins judged."""

from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.calls import offer, take_all
from tests.support.session.crashing import Crash
from tests.support.session.drafting import draft
from tests.support.session.finalizing import Reader, die, finalize_beside
from tests.support.session.harness import Mesh
from tests.support.session.plugins import plugged


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def refusal(mesh: Mesh, held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await offer(mesh, held, offered)
    return caught.value


@pytest.mark.parametrize(
    ("then", "judged"),
    [("harmful", ["harmless", "harmful"]), ("harmless", ["harmless"])],
    ids=["other", "same"],
)
async def test_FinalizeRun__a_draft_offered_again_is_judged_where_its_text_is_another(
    mesh: Mesh, peers: dict[str, str], transcript: Peer, then: str, judged: list[str]
) -> None:
    async def note(session_id: str) -> None:
        if len(plugin.read) == 1:
            request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text="a note")
            await mesh.client(mesh.sessions.SendMessage, request)

    plugin = Reader(meanwhile=note)
    async with plugged(mesh, peers, plugin, sees_content=True):
        held = await mesh.claim((await mesh.spawn()).session_id)
        offered = await draft(transcript, held, "harmless")
        assert (await offer(mesh, held, offered)).messages_pending.count == 1
        await take_all(mesh, held)
        offered.draft_text = then
        assert (await offer(mesh, held, offered)).accepted.run.result_text == then
        assert plugin.read == judged


async def test_FinalizeRun__another_text_of_a_draft_that_is_the_answer_is_refused(
    mesh: Mesh, transcript: Peer
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    offered.draft_text = "43"
    error = await refusal(mesh, held, offered)
    assert (error.reason, error.facts["draft_entry_id"]) == (Reason.RUN_STATE, offered.draft_entry_id)
    offered.draft_text = "42"
    assert (await offer(mesh, held, offered)).accepted.run.result_text == "42"
    offered.draft_text = "43"
    assert (await refusal(mesh, held, offered)).reason is Reason.RUN_STATE
    offered.draft_text = "42"
    assert (await offer(mesh, held, offered)).accepted.run.result_text == "42"
