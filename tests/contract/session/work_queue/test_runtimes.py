"""Runs are claimed by the runtime of their session: SUBAGENT or EXTERNAL."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL, RUNTIME_SUBAGENT
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.waiting import eventually

BOTH = (RUNTIME_SUBAGENT, RUNTIME_EXTERNAL)


async def handed_out(mesh: Mesh, runtimes: Sequence[int] = ()) -> set[str]:
    """Return the sessions of all runs that a claim of these runtimes gets."""
    sessions: set[str] = set()
    while claimed := await mesh.claim_any(wait_seconds=0.0, limit=64, runtimes=runtimes):
        sessions |= {held.session.session_id for held in claimed}
    return sessions


async def release(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))


async def test_ClaimRuns__run_of_an_external_session_needs_that_runtime(mesh: Mesh) -> None:
    own = (await mesh.spawn()).session_id
    outside = (await mesh.spawn(runtime=RUNTIME_EXTERNAL)).session_id
    assert {own, outside} & await handed_out(mesh) == {own}
    assert {own, outside} & await handed_out(mesh, [RUNTIME_SUBAGENT]) == set()
    held = await mesh.claim(outside, runtimes=[RUNTIME_EXTERNAL])
    assert held.session.runtime == RUNTIME_EXTERNAL


async def test_ClaimRuns__runtime_external_alone_gets_no_subagent_run(mesh: Mesh) -> None:
    own = (await mesh.spawn()).session_id
    assert own not in await handed_out(mesh, [RUNTIME_EXTERNAL])
    assert own in await handed_out(mesh)


async def test_ClaimRuns__both_runtimes_get_runs_of_both(mesh: Mesh) -> None:
    spawned = {(await mesh.spawn(runtime=runtime)).session_id for runtime in BOTH for _ in range(2)}
    assert spawned <= await handed_out(mesh, BOTH)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__runs_that_wait_for_another_runtime_keep_none_waiting(mesh: Mesh) -> None:
    """However many wait before it of the same tenant, and however few are asked for."""
    waiting = {(await mesh.spawn(runtime=RUNTIME_EXTERNAL)).session_id for _ in range(5)}
    own = (await mesh.spawn()).session_id
    claimed: list[str] = []
    while own not in claimed:
        [held] = await mesh.claim_any(limit=1)
        claimed.append(held.session.session_id)
    assert not waiting.intersection(claimed)
    assert waiting <= await handed_out(mesh, [RUNTIME_EXTERNAL])


async def test_ClaimRuns__runs_of_every_runtime_count_for_the_tenants_limit(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=1))
    outside = (await own.spawn(runtime=RUNTIME_EXTERNAL)).session_id
    held = await own.claim(outside, runtimes=[RUNTIME_EXTERNAL])
    waiting = (await own.spawn()).session_id
    assert waiting not in await handed_out(own)
    await release(own, held)
    assert waiting in await handed_out(own)
    assert outside not in await handed_out(own, BOTH)


async def test_SendMessage__queues_a_run_of_the_sessions_runtime(mesh: Mesh, peers: dict[str, str]) -> None:
    session = await mesh.spawn(runtime=RUNTIME_EXTERNAL, mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id, runtimes=[RUNTIME_EXTERNAL])
    async with caller_at(peers["transcript"], "transcript") as transcript:
        offer = await draft(transcript, held, "The answer.")
    assert (await mesh.run(held, mesh.runs.FinalizeRun, offer)).HasField("accepted")
    request = pb.SendMessageRequest(session_id=session.session_id, request_id=uuid4().hex, text="And now?")
    queued = (await mesh.client(mesh.sessions.SendMessage, request)).run
    assert session.session_id not in await handed_out(mesh)
    again = await mesh.claim(session.session_id, runtimes=[RUNTIME_EXTERNAL])
    assert again.run.run_id == queued.run_id != held.run.run_id


async def test_SpawnSession__child_of_a_run_has_the_runtime_that_the_spawn_names(mesh: Mesh) -> None:
    """And that of its parent does not matter."""
    parent = (await mesh.spawn(runtime=RUNTIME_EXTERNAL)).session_id
    held = await mesh.claim(parent, runtimes=[RUNTIME_EXTERNAL])
    own = (await mesh.spawn_as(held)).session_id
    outside = (await mesh.spawn_as(held, runtime=RUNTIME_EXTERNAL)).session_id
    assert {own, outside} & await handed_out(mesh) == {own}
    assert outside in await handed_out(mesh, [RUNTIME_EXTERNAL])


async def test_ReleaseRun__run_of_an_external_session_goes_to_another_harness_alone(mesh: Mesh) -> None:
    session_id = (await mesh.spawn(runtime=RUNTIME_EXTERNAL)).session_id
    await release(mesh, await mesh.claim(session_id, runtimes=[RUNTIME_EXTERNAL]))
    assert session_id not in await handed_out(mesh)
    assert (await mesh.claim(session_id, runtimes=[RUNTIME_EXTERNAL])).run.epoch == 2


async def test_ClaimRuns__run_of_a_lost_harness_goes_to_another_harness_alone(open_mesh: OpenMesh) -> None:
    async with open_mesh(lease_ttl_seconds=0.3) as short:
        await short.create_tenant()
        session_id = (await short.spawn(runtime=RUNTIME_EXTERNAL)).session_id
        held = await short.claim(session_id, runtimes=[RUNTIME_EXTERNAL])

        async def lease_is_over() -> bool:
            """The mesh's own runners get what was let go of later."""
            seen.update(await handed_out(short))
            return later in seen

        seen: set[str] = set()
        later = (await short.claim((await short.spawn()).session_id)).session.session_id
        await eventually(lease_is_over)
        assert session_id not in seen
        again = await short.claim(session_id, runtimes=[RUNTIME_EXTERNAL])
        assert (again.run.run_id, again.run.epoch) == (held.run.run_id, held.run.epoch + 1)


@pytest.mark.parametrize(
    "runtimes",
    [
        pytest.param([session_pb2.RUNTIME_UNSPECIFIED], id="unspecified"),
        pytest.param([99], id="unknown"),
        pytest.param([RUNTIME_EXTERNAL, RUNTIME_EXTERNAL], id="twice"),
    ],
)
async def test_ClaimRuns__runtimes_that_cannot_be(mesh: Mesh, runtimes: list[int]) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.claim_any(wait_seconds=0.0, runtimes=runtimes)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.violations[0].field.startswith("runtimes")
