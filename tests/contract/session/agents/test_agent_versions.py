"""Versions and etags of agents: a change that is based on an old version changes nothing."""

import asyncio
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import tenant_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.session.harness import Mesh


async def call(mesh: Mesh, name: str, request: Any) -> Any:
    return await mesh.client(getattr(TenantServiceStub(mesh.peer.channel), name), request)


async def put(mesh: Mesh, prompt: str, etag: str = "", **fields: Any) -> AgentProfile:
    agent = AgentProfile(agent_id="clerk", system_prompt=prompt, etag=etag, **fields)
    written: AgentProfile = (
        await call(
            mesh,
            "UpdateAgent",
            pb.UpdateAgentRequest(allow_missing=True, update_mask={"paths": ["*"]}, agent=agent),
        )
    ).agent
    return written


async def get(mesh: Mesh) -> AgentProfile:
    found: AgentProfile = (await call(mesh, "GetAgent", pb.GetAgentRequest(agent_id="clerk"))).agent
    return found


async def refusal(doing: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await doing
    return caught.value


async def test_UpdateAgent__each_change_is_a_version_with_an_etag_of_its_own(mesh: Mesh) -> None:
    written = [await put(mesh, prompt) for prompt in ("one", "two", "one")]
    assert [agent.version for agent in written] == [1, 2, 3]
    assert len({agent.etag for agent in written}) == 3
    assert await get(mesh) == written[-1]
    listed = await call(mesh, "ListAgents", pb.ListAgentsRequest())
    assert [(agent.agent_id, agent.version) for agent in listed.agents] == [("clerk", 3), ("default", 1)]
    assert listed.agents[0] == written[-1]


async def test_UpdateAgent__the_same_content_is_no_change_whatever_its_etag(mesh: Mesh) -> None:
    first = await put(mesh, "one")
    second = await put(mesh, "two", first.etag)
    for repeat in (await put(mesh, "two", first.etag), await put(mesh, "two"), await put(mesh, "two", "x")):
        assert repeat == second
    assert second.version == 2
    # A version in the request is not read.
    assert (await put(mesh, "two", version=7)).version == 2
    assert (await put(mesh, "three", version=7)).version == 3


async def test_UpdateAgent__an_old_etag_changes_nothing(mesh: Mesh) -> None:
    first = await put(mesh, "one")
    second = await put(mesh, "two")
    error = await refusal(put(mesh, "three", first.etag))
    assert (error.reason, error.status) == (Reason.ETAG_DIFFERS, Status.ABORTED)
    assert error.facts == {"agent_id": "clerk", "etag": second.etag, "version": "2"}
    assert [violation.field for violation in error.violations] == ["agent.etag"]
    assert await get(mesh) == second
    assert (await put(mesh, "three", error.facts["etag"])).version == 3


async def test_UpdateAgent__an_etag_creates_no_agent(mesh: Mesh) -> None:
    assert (await refusal(put(mesh, "one", "0" * 32))).reason is Reason.UNKNOWN_AGENT
    assert (await refusal(get(mesh))).reason is Reason.UNKNOWN_AGENT
    assert [one.field for one in (await refusal(put(mesh, "one", "0" * 65))).violations] == ["agent.etag"]


async def test_UpdateAgent__of_concurrent_changes_of_one_version_one_is_made(mesh: Mesh) -> None:
    first = await put(mesh, "one")
    changes = [put(mesh, f"change {number}", first.etag) for number in range(6)]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, MeshError)]
    [written] = [one for one in outcomes if isinstance(one, AgentProfile)]
    assert [error.reason for error in refused] == [Reason.ETAG_DIFFERS] * 5
    assert written.version == 2
    assert await get(mesh) == written


async def change(mesh: Mesh, *paths: str, allow_missing: bool = False, **fields: Any) -> AgentProfile:
    agent = AgentProfile(agent_id="clerk", **fields)
    mask = FieldMask(paths=paths)
    request = pb.UpdateAgentRequest(agent=agent, update_mask=mask, allow_missing=allow_missing)
    written: AgentProfile = (await call(mesh, "UpdateAgent", request)).agent
    return written


async def test_UpdateAgent__changes_the_masked_fields_and_no_other(mesh: Mesh) -> None:
    await put(mesh, "one", models=["a", "b"], max_turn_count=3)
    changed = await change(mesh, "models", "max_turn_count", system_prompt="two", models=["c"])
    assert (changed.system_prompt, list(changed.models), changed.max_turn_count) == ("one", ["c"], 0)
    of_what_is_set = await change(mesh, max_turn_count=4, version=9)
    assert (of_what_is_set.system_prompt, list(of_what_is_set.models)) == ("one", ["c"])
    assert (of_what_is_set.max_turn_count, of_what_is_set.version) == (4, 3)
    assert await change(mesh) == of_what_is_set
    replaced = await change(mesh, "*", system_prompt="all")
    assert (list(replaced.models), replaced.max_turn_count, replaced.version) == ([], 0, 4)
    assert await get(mesh) == replaced


async def test_UpdateAgent__creates_an_agent_only_if_asked(mesh: Mesh) -> None:
    assert (await refusal(change(mesh, system_prompt="one"))).reason is Reason.UNKNOWN_AGENT
    made = await change(mesh, "models", allow_missing=True, system_prompt="one", models=["a"])
    assert (made.system_prompt, list(made.models), made.version) == ("one", ["a"], 1)
    kept = await change(mesh, "models", allow_missing=True, models=["b"])
    assert (kept.system_prompt, list(kept.models)) == ("one", ["b"])


@pytest.mark.parametrize("path", ["agent_id", "version", "etag", "nothing", "models.a", ""])
async def test_UpdateAgent__mask_with_a_field_that_cannot_be_changed(mesh: Mesh, path: str) -> None:
    error = await refusal(change(mesh, "models", path, allow_missing=True))
    assert error.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in error.violations] == ["update_mask.paths[1]"]


async def test_UpdateAgent__a_stale_partial_change_changes_nothing(mesh: Mesh) -> None:
    first = await put(mesh, "one")
    second = await put(mesh, "two")
    error = await refusal(change(mesh, "models", models=["a"], etag=first.etag))
    assert (error.reason, error.facts["etag"]) == (Reason.ETAG_DIFFERS, second.etag)
    assert await get(mesh) == second


async def test_DeleteAgent__an_old_etag_deletes_nothing(mesh: Mesh) -> None:
    first = await put(mesh, "one")
    second = await put(mesh, "two")
    error = await refusal(call(mesh, "DeleteAgent", pb.DeleteAgentRequest(agent_id="clerk", etag=first.etag)))
    assert (error.reason, error.facts["etag"]) == (Reason.ETAG_DIFFERS, second.etag)
    assert [violation.field for violation in error.violations] == ["etag"]
    assert await get(mesh) == second
    for _ in range(2):  # Again when the agent is gone.
        await call(mesh, "DeleteAgent", pb.DeleteAgentRequest(agent_id="clerk", etag=second.etag))
    assert (await refusal(get(mesh))).reason is Reason.UNKNOWN_AGENT
    assert (await put(mesh, "two")).version == 1


async def test_sessions_name_the_version_of_their_spawn_and_runs_use_the_newest(mesh: Mesh) -> None:
    await put(mesh, "one", spawnable_agents=["*"])
    old = await mesh.spawn(agent_id="clerk")
    second = await put(mesh, "two", spawnable_agents=["*"])
    new = await mesh.spawn(agent_id="clerk", parent_session_id=old.session_id)
    assert (old.agent_version, new.agent_version) == (1, 2)
    held: run_pb.ClaimedRun = await mesh.claim(old.session_id)
    assert (held.session.agent_version, held.agent) == (1, second)
    assert (await mesh.get(old.session_id)).agent_version == 1
    child = await mesh.spawn_as(held, agent_id="clerk")
    assert child.agent_version == 2
