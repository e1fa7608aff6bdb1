"""The token of a runner can limit it to runs of certain tenants and agents."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import SERVICE_TOKEN_SECONDS

from tests.support.serving import caller_at, client_tokens, runner_tokens
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh
from tests.support.session.revoking import id_of, is_refused, revoke
from tests.support.waiting import eventually

SERVICES = {
    **run_pb.DESCRIPTOR.services_by_name,
    **pb.DESCRIPTOR.services_by_name,
    **tenant_pb.DESCRIPTOR.services_by_name,
}
METHODS = [method for service in SERVICES.values() for method in service.methods]


@pytest.fixture
async def other(mesh: Mesh) -> Mesh:
    """Another tenant of the same mesh."""
    another = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await another.create_tenant()
    return another


async def claim_all(
    mesh: Mesh, tenants: Sequence[str], agents: Sequence[str] = (), *, issuer: str = "client"
) -> list[run_pb.ClaimedRun]:
    """Claim every waiting run that a token with these limits gets."""
    minter = client_tokens(mesh.keys) if issuer == "client" else runner_tokens(mesh.keys)
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=64)
    claimed: list[run_pb.ClaimedRun] = []
    with use_token(minter.runner_token("harness", 600, tenants=tenants, agents=agents)):
        while held := (await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60.0)).runs:
            claimed += held
    return claimed


async def claim_one(mesh: Mesh, token: str) -> run_pb.ClaimedRun:
    """Claim one run with the token of a harness."""
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1, wait=Duration(seconds=20))
    with use_token(token):
        [held] = (await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60.0)).runs
    return held


async def beat(mesh: Mesh, held: run_pb.ClaimedRun) -> run_pb.HeartbeatRunResponse:
    """Renew the lease."""
    request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    answer: run_pb.HeartbeatRunResponse = await mesh.run(held, mesh.runs.HeartbeatRun, request)
    return answer


def sessions_of(claimed: Sequence[run_pb.ClaimedRun]) -> set[str]:
    return {held.session.session_id for held in claimed}


@pytest.mark.parametrize("issuer", ["client", "runner"])
async def test_ClaimRuns__gets_the_runs_of_the_named_tenants_alone(
    mesh: Mesh, other: Mesh, issuer: str
) -> None:
    ours = {(await mesh.spawn()).session_id for _ in range(3)}
    theirs = (await other.spawn()).session_id
    assert sessions_of(await claim_all(mesh, [mesh.tenant], issuer=issuer)) == ours
    assert sessions_of(await claim_all(mesh, ["no-such-tenant"], issuer=issuer)) == set()
    # Nothing of another tenant was touched.
    held = await other.claim(theirs)
    assert (held.run.attempt_count, held.run.epoch) == (1, 1)


async def test_ClaimRuns__gets_the_runs_of_several_named_tenants(mesh: Mesh, other: Mesh) -> None:
    spawned = {(await one.spawn()).session_id for one in (mesh, other)}
    assert sessions_of(await claim_all(mesh, [mesh.tenant, other.tenant])) == spawned


async def test_ClaimRuns__gets_the_runs_of_the_named_agents_alone(mesh: Mesh, other: Mesh) -> None:
    for one in (mesh, other):
        for agent in ("reviewer", "writer"):
            await one.put_agent(AgentProfile(agent_id=agent))
    spawned = {
        (one.tenant, agent): (await one.spawn(agent_id=agent)).session_id
        for one in (mesh, other)
        for agent in ("reviewer", "writer", "default")
    }
    reviews = await claim_all(mesh, [mesh.tenant], ["reviewer"])
    assert sessions_of(reviews) == {spawned[mesh.tenant, "reviewer"]}
    both = await claim_all(mesh, [mesh.tenant], ["reviewer", "writer"])
    assert sessions_of(both) == {spawned[mesh.tenant, "writer"]}
    assert sessions_of(await claim_all(mesh, [mesh.tenant])) == {spawned[mesh.tenant, "default"]}
    assert len(await claim_all(mesh, [other.tenant])) == 3


async def claim_reason(mesh: Mesh, token: str) -> Reason | None:
    """Wait for a run, for up to a minute, and return the reason of the refusal."""
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1, wait=Duration(seconds=60))
    try:
        with use_token(token):
            await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=90.0)
    except MeshError as error:
        return error.reason
    return None


async def test_ClaimRuns__waiting_call_ends_when_its_token_expires(mesh: Mesh) -> None:
    short = client_tokens(mesh.keys).runner_token("harness", 3, tenants=[mesh.tenant])
    assert await claim_reason(mesh, short) is Reason.TOKEN_EXPIRED


async def test_ClaimRuns__revoked_token_claims_nothing(mesh: Mesh) -> None:
    token = client_tokens(mesh.keys).runner_token("harness", 600, tenants=[mesh.tenant])
    claiming = asyncio.create_task(claim_reason(mesh, token))
    operator = client_tokens(mesh.keys).admin_token("operator", 600)
    await revoke(mesh, operator, token_id=id_of(token))
    assert await claiming is Reason.TOKEN_REVOKED
    session = await mesh.spawn()
    assert await claim_reason(mesh, token) is Reason.TOKEN_REVOKED
    assert (await mesh.claim(session.session_id)).run.attempt_count == 1


async def reason_of_run(mesh: Mesh, token: str, session_id: str) -> Reason | None:
    """Read the session with the token of its run; return the reason of the refusal."""
    try:
        with use_token(token):
            await mesh.peer.unary(
                mesh.sessions.GetSession, pb.GetSessionRequest(session_id=session_id), timeout_seconds=60
            )
    except MeshError as error:
        return error.reason
    return None


async def test_revoked_harness_loses_the_runs_that_it_holds_and_another_keeps_its_own(mesh: Mesh) -> None:
    sessions = [(await mesh.spawn()).session_id for _ in range(2)]
    minter = client_tokens(mesh.keys)
    harnesses = [minter.runner_token("harness", 600, tenants=[mesh.tenant]) for _ in range(2)]
    held = [await claim_one(mesh, token) for token in harnesses]
    assert sessions_of(held) == set(sessions)
    first, other = held
    renewed = (await beat(mesh, first)).run_token
    with use_token(renewed):
        watch = mesh.peer.stream(
            mesh.sessions.WatchSession,
            pb.WatchSessionRequest(session_id=first.session.session_id),
            timeout_seconds=60,
        )
        await anext(watch)
        operator = client_tokens(mesh.keys).admin_token("operator", 600)
        await revoke(mesh, operator, token_id=id_of(harnesses[0]))
        with pytest.raises(MeshError) as ended:
            async for _ in watch:
                pass
    assert ended.value.reason is Reason.TOKEN_REVOKED

    for token in (first.run_token, renewed):
        assert await reason_of_run(mesh, token, first.session.session_id) is Reason.TOKEN_REVOKED
    with pytest.raises(MeshError) as refused:
        await beat(mesh, first)
    assert refused.value.reason is Reason.TOKEN_REVOKED
    assert await reason_of_run(mesh, other.run_token, other.session.session_id) is None
    assert (await beat(mesh, other)).run_token


@pytest.mark.parametrize(
    "expire_time", [datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
)
async def test_tenant_revokes_its_harness_and_its_runs_whenever_the_harness_expires(
    mesh: Mesh, expire_time: datetime
) -> None:
    """A run goes on when the token that it was claimed with expires, so its end must not count."""
    minter = client_tokens(mesh.keys)
    harness = minter.runner_token("harness", 600, tenants=[mesh.tenant])
    await mesh.spawn()
    held = await claim_one(mesh, harness)
    stamp = Timestamp()
    stamp.FromDatetime(expire_time)
    operator = minter.client_token(mesh.tenant, "operator", 600)
    answer = await revoke(mesh, operator, token_id=id_of(harness), expire_time=stamp)
    left = answer.expire_time.ToDatetime(UTC) - utc_now()
    assert left > timedelta(seconds=SERVICE_TOKEN_SECONDS)
    await eventually(is_refused(mesh, held.run_token))
    assert await claim_reason(mesh, harness) is Reason.TOKEN_REVOKED


async def test_tenant_revokes_no_harness_of_several_tenants_but_its_own_runs(mesh: Mesh, other: Mesh) -> None:
    minter = client_tokens(mesh.keys)
    harness = minter.runner_token("harness", 600, tenants=[mesh.tenant, other.tenant])
    sessions = {mesh.tenant: await mesh.spawn(), other.tenant: await other.spawn()}
    held = {one.tenant_id: one for one in [await claim_one(mesh, harness) for _ in sessions]}
    operator = minter.client_token(mesh.tenant, "operator", 600)
    await revoke(mesh, operator, token_id=id_of(harness))
    await eventually(is_refused(mesh, held[mesh.tenant].run_token))
    foreign = held[other.tenant]
    assert await reason_of_run(other, foreign.run_token, foreign.session.session_id) is None
    assert (await beat(other, foreign)).run_token


async def test_ClaimRuns__run_that_waits_for_a_message_keeps_its_agent(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    await mesh.put_agent(AgentProfile(agent_id="reviewer"))
    spawned = await mesh.spawn(agent_id="reviewer", mode=session_pb2.SESSION_MODE_SESSION)
    [held] = await claim_all(mesh, [mesh.tenant], ["reviewer"])
    async with caller_at(peers["transcript"], "transcript") as transcript:
        await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "Fine."))
    request = pb.SendMessageRequest(session_id=spawned.session_id, request_id="again", text="And now?")
    await mesh.client(mesh.sessions.SendMessage, request)
    assert await claim_all(mesh, [mesh.tenant], ["default"]) == []
    assert sessions_of(await claim_all(mesh, [mesh.tenant], ["reviewer"])) == {spawned.session_id}


def filled(method: MethodDescriptor, run_id: str, session_id: str) -> Message:
    """Return a request that names the run and the session wherever the method takes an id."""
    request: Any = GetMessageClass(method.input_type)()
    for name, value in (("session_id", session_id), ("run_id", run_id), ("epoch", 1)):
        if name in method.input_type.fields_by_name:
            setattr(request, name, value)
    return request  # type: ignore[no-any-return]


def caller_of(mesh: Mesh, method: MethodDescriptor) -> Any:
    call = mesh.peer.channel.unary_stream if method.server_streaming else mesh.peer.channel.unary_unary
    return call(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


async def call_once(mesh: Mesh, method: MethodDescriptor, request: Message) -> None:
    if not method.server_streaming:
        await mesh.peer.unary(caller_of(mesh, method), request, timeout_seconds=60)
        return
    async for _ in mesh.peer.stream(caller_of(mesh, method), request, timeout_seconds=60):
        return


async def refusal_of(mesh: Mesh, method: MethodDescriptor, request: Message, token: str) -> Reason:
    with use_token(token), pytest.raises(MeshError) as caught:
        await call_once(mesh, method, request)
    return caught.value.reason


async def test_every_rpc_that_acts_on_a_run_refuses_the_token_of_a_runner(mesh: Mesh, other: Mesh) -> None:
    held = await other.claim((await other.spawn()).session_id)
    token = client_tokens(mesh.keys).runner_token("harness", 600, tenants=[mesh.tenant])
    refused = {
        method.name: await refusal_of(
            mesh, method, filled(method, held.run.run_id, held.session.session_id), token
        )
        for method in METHODS
        if method.name not in ("ClaimRuns", "WatchRunChanges")
    }
    assert len(refused) > 15
    assert {name: why for name, why in refused.items() if why is not Reason.CALLER_NOT_ALLOWED} == {}


async def test_token_of_a_claimed_run_opens_no_session_of_another_agent_or_tenant(
    mesh: Mesh, other: Mesh, peers: dict[str, str]
) -> None:
    await mesh.put_agent(AgentProfile(agent_id="reviewer"))
    await mesh.spawn(agent_id="reviewer")
    [own] = await claim_all(mesh, [mesh.tenant], ["reviewer"])
    foreign = [await one.claim((await one.spawn()).session_id) for one in (mesh, other)]
    async with caller_at(peers["transcript"], "transcript") as transcript:
        stub: Any = TranscriptServiceStub(transcript.channel)
        for held in foreign:
            session_id = held.session.session_id
            claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
            for peer, call, request in (
                (mesh.peer, mesh.sessions.GetSession, pb.GetSessionRequest(session_id=session_id)),
                (
                    transcript,
                    stub.AcquireWriter,
                    transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim),
                ),
                (transcript, stub.ListEntries, transcript_pb.ListEntriesRequest(session_id=session_id)),
            ):
                with use_token(own.run_token), pytest.raises(MeshError) as caught:
                    await peer.unary(call, request, timeout_seconds=60)
                assert caught.value.reason is Reason.NOT_FOUND
    for held in foreign:  # Its runner still holds it, and nothing has changed.
        assert (await beat(mesh, held)).HasField("lease_expire_time")


async def test_ClaimRuns__limited_runner_waits_for_a_run_of_its_own(mesh: Mesh, other: Mesh) -> None:
    """And gets the run that comes, although runs of others wait."""
    await other.spawn(runtime=RUNTIME_EXTERNAL)
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1, runtimes=[RUNTIME_EXTERNAL])
    spawned = (await mesh.spawn(runtime=RUNTIME_EXTERNAL)).session_id
    request.wait.FromSeconds(20)
    with use_token(client_tokens(mesh.keys).runner_token("harness", 600, tenants=[mesh.tenant])):
        [held] = (await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60.0)).runs
    assert held.session.session_id == spawned
