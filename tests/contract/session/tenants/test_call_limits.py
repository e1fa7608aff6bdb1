"""The call limits in a tenant's settings hold in every service, for its clients and for no others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import tenant_service_pb2 as pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits, ClassLimits
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.serving import client_tokens
from tests.support.session.all_services import READS, open_all_services
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.waiting import eventually

# Admitting all of them would take so many seconds at one call a second.
BURST = 30
MIB = 1024 * 1024

AllServices = tuple[Mesh, dict[str, Peer]]


@pytest.fixture
async def services(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn]
) -> AsyncIterator[AllServices]:
    async with open_all_services(open_peers, open_mesh, migrated) as opened:
        yield opened


async def set_limits(mesh: Mesh, limits: CallLimits | None) -> None:
    request = pb.UpdateTenantRequest(
        tenant=Tenant(tenant_id=mesh.tenant, settings=TenantSettings(call_limits=limits)),
        update_mask=FieldMask(paths=["settings.call_limits"]),
    )
    await mesh.operator("UpdateTenant", request)


async def flood(peer: Peer, service: str, token: str) -> list[MeshError]:
    """Make many calls at once; return the refusals."""

    async def one() -> MeshError | None:
        try:
            with use_token(token):
                await READS[service](peer)
        except MeshError as error:
            return error
        return None

    return [error for error in await asyncio.gather(*(one() for _ in range(BURST))) if error is not None]


@pytest.mark.parametrize("service", READS)
async def test_flood_is_refused_with_limit_class_and_time_and_another_tenants_is_not(
    services: AllServices, service: str
) -> None:
    mesh, peers = services
    tokens, other = client_tokens(mesh.keys), f"t-{uuid4().hex[:12]}"
    await mesh.create_tenant(other)
    own, others = (tokens.client_token(tenant, "test", 600) for tenant in (mesh.tenant, other))
    await set_limits(mesh, CallLimits(read=ClassLimits(calls_per_second=1)))

    async def refused() -> list[MeshError]:
        return await flood(peers[service], service, own)

    errors = await eventually(refused)
    assert {(error.reason, error.status, error.domain) for error in errors} == {
        (Reason.RATE_LIMITED, Status.RESOURCE_EXHAUSTED, f"{service}.spawnmesh")
    }
    assert errors[0].facts == {"rpc_class": "READ", "limit": "calls_per_second", "max_per_second": "1"}
    assert all(error.retry_after_seconds is not None for error in errors)
    assert await flood(peers[service], service, others) == []
    await set_limits(mesh, None)

    async def passes() -> bool:
        return not await flood(peers[service], service, own)

    await eventually(passes)


async def test_bytes_of_malformed_requests_count(services: AllServices) -> None:
    mesh, _ = services
    await set_limits(mesh, CallLimits(read=ClassLimits(bytes_per_second=MIB)))
    # One of them is owed for ten seconds.
    large = session_pb.GetSessionRequest(session_id="x" * 11 * MIB)

    async def reasons() -> set[Reason]:
        async def one() -> Reason:
            with pytest.raises(MeshError) as refused:
                await mesh.client(SessionServiceStub(mesh.peer.channel).GetSession, large)
            return refused.value.reason

        return {await one(), await one()}

    async def is_limited() -> bool:
        return await reasons() == {Reason.INVALID_REQUEST, Reason.RATE_LIMITED}

    await eventually(is_limited)


async def test_calls_of_a_run_are_not_counted(services: AllServices) -> None:
    mesh, peers = services
    claimed = await mesh.claim((await mesh.spawn()).session_id)
    await set_limits(mesh, CallLimits(read=ClassLimits(calls_per_second=1)))
    own = client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)

    async def refused() -> list[MeshError]:
        return await flood(peers["session"], "session", own)

    await eventually(refused)
    assert await flood(peers["session"], "session", claimed.run_token) == []


@pytest.mark.parametrize("renewed", [False, True])
async def test_calls_of_a_harness_count_as_those_of_clients(services: AllServices, renewed: bool) -> None:
    mesh, peers = services
    await mesh.spawn()
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1)
    with use_token(client_tokens(mesh.keys).runner_token("harness", 600, tenants=[mesh.tenant])):
        [claimed] = (await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60.0)).runs
    token = claimed.run_token
    if renewed:
        heartbeat = run_pb.HeartbeatRunRequest(epoch=claimed.run.epoch)
        token = (await mesh.run(claimed, mesh.runs.HeartbeatRun, heartbeat)).run_token
    await set_limits(mesh, CallLimits(read=ClassLimits(calls_per_second=1)))

    async def refused() -> list[MeshError]:
        return await flood(peers["session"], "session", token)

    errors = await eventually(refused)
    assert {error.reason for error in errors} == {Reason.RATE_LIMITED}


async def test_limits_of_a_new_tenant_hold(services: AllServices) -> None:
    mesh, peers = services
    tenant = f"t-{uuid4().hex[:12]}"
    await mesh.create_tenant(
        tenant, TenantSettings(call_limits=CallLimits(read=ClassLimits(calls_per_second=1)))
    )
    token = client_tokens(mesh.keys).client_token(tenant, "test", 600)

    async def refused() -> list[MeshError]:
        return await flood(peers["hook"], "hook", token)

    await eventually(refused)


async def test_WatchCallLimits__reports_all_limits_and_then_each_change(mesh: Mesh, keys: Path) -> None:
    stub = TenantServiceStub(mesh.peer.channel)
    limits = CallLimits(spawn=ClassLimits(concurrent_call_count=3))
    seen = Counter[str]()
    await set_limits(mesh, limits)
    request = pb.WatchCallLimitsRequest()
    with use_token(TokenMinter("hook", keys / "hook.pem").mesh_token()):
        messages = mesh.peer.stream(stub.WatchCallLimits, request, timeout_seconds=60)
    async with asyncio.timeout(60), aclosing(messages):
        is_complete = False
        with use_token(TokenMinter("hook", keys / "hook.pem").mesh_token()):
            async for message in messages:
                for one in message.limits:
                    if one.tenant_id != mesh.tenant:
                        continue
                    if one.limits == limits:
                        seen["set"] += 1
                        await set_limits(mesh, None)
                    elif not one.limits.ListFields():
                        seen["reset"] += 1
                is_complete = is_complete or message.is_complete
                if seen["reset"]:
                    break
    assert (is_complete, seen) == (True, {"set": 1, "reset": 1})


async def test_WatchCallLimits__is_for_services_alone(mesh: Mesh) -> None:
    stub = TenantServiceStub(mesh.peer.channel)
    with (
        use_token(client_tokens(mesh.keys).admin_token("operator", 600)),
        pytest.raises(MeshError) as refused,
    ):
        async for _ in mesh.peer.stream(
            stub.WatchCallLimits, pb.WatchCallLimitsRequest(), timeout_seconds=20
        ):
            pass
    assert refused.value.reason is Reason.CALLER_NOT_ALLOWED


@pytest.mark.parametrize(
    "limits",
    [
        ClassLimits(calls_per_second=-1),
        ClassLimits(bytes_per_second=1),
        ClassLimits(concurrent_call_count=-1),
    ],
)
async def test_UpdateTenant__impossible_limits_are_refused(mesh: Mesh, limits: ClassLimits) -> None:
    with pytest.raises(MeshError) as refused:
        await set_limits(mesh, CallLimits(read=limits))
    assert refused.value.reason is Reason.INVALID_REQUEST


async def test_UpdateTenant__ceiling_of_the_operator(mesh: Mesh) -> None:
    own = CallLimits(read=ClassLimits(calls_per_second=7), spawn=ClassLimits(calls_per_second=1001))
    with pytest.raises(MeshError) as refused:
        await set_limits(mesh, own)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert [one.field for one in refused.value.violations] == ["settings.call_limits.spawn.calls_per_second"]
    assert "at most 1000" in refused.value.violations[0].description
    with pytest.raises(MeshError) as created:
        await mesh.create_tenant(f"t-{uuid4().hex[:12]}", TenantSettings(call_limits=own))
    assert created.value.reason is Reason.INVALID_REQUEST
    await set_limits(mesh, CallLimits(spawn=ClassLimits(calls_per_second=1000)))


async def test_limits_of_the_operator_hold_for_a_tenant_without_settings_and_its_own_override_them(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn]
) -> None:
    """The operator lowered the ceiling after the tenant got its limits."""
    defaults, ceiling = {"read": {"calls_per_second": 1}}, {"read": {"calls_per_second": 2}}
    async with open_mesh(call_limits=defaults, call_limits_ceiling=ceiling) as mesh:
        await mesh.create_tenant()
        own = client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)

        async def rates() -> set[str]:
            return {error.facts["max_per_second"] for error in await flood(mesh.peer, "session", own)}

        assert await rates() == {"1"}
        await set_limits(mesh, CallLimits(read=ClassLimits(calls_per_second=2)))
        await eventually(lambda: _equals(rates, {"2"}))
        async with open_mesh() as generous:
            lifted = Mesh(generous.peer, generous.keys, generous.settings)
            lifted.tenant = mesh.tenant
            await set_limits(lifted, CallLimits(read=ClassLimits(calls_per_second=900)))
            await eventually(lambda: _equals(lambda: flood(generous.peer, "session", own), []))
        await eventually(lambda: _equals(rates, {"2"}))


async def _equals(read: Callable[[], Awaitable[object]], expected: object) -> bool:
    return await read() == expected
