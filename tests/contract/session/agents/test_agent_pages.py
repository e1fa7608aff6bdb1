"""Lists of agents and tenants have pages that any client accepts; agents are limited."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.wire import WireMesh as Client
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database

from tests.support.page_keys import page_key_from
from tests.support.serving import client_tokens
from tests.support.session.calls import content_of, fill_agents
from tests.support.session.harness import Mesh
from tests.support.session.tables import superuser

GRPC_TAKES_BYTES = 4 * 1024 * 1024  # The default limit of a gRPC client.
LARGEST_PROMPT = "Du bist ein Prüfer. " * (262144 // 21)
LIMIT = 1000


async def agent_pages(
    mesh: Mesh, *, tenant: str = "", page_size: int = 0
) -> list[tenant_pb.ListAgentsResponse]:
    """Every page of the tenant's agents."""
    request = tenant_pb.ListAgentsRequest(page_size=page_size)
    call = TenantServiceStub(mesh.peer.channel).ListAgents
    pages = [await mesh.client(call, request, tenant=tenant)]
    while pages[-1].next_page_token:
        request.page_token = pages[-1].next_page_token
        pages.append(await mesh.client(call, request, tenant=tenant))
    return pages


def ids_of(pages: list[tenant_pb.ListAgentsResponse]) -> list[str]:
    return [agent.agent_id for page in pages for agent in page.agents]


def client_of(mesh: Mesh, token: str) -> Client:
    """The client library, connected to the service."""
    return Client({"session": TokenPeer(mesh.peer.connection, token)}, mesh.settings.max_message_bytes)


async def refusal(call: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value


async def test_ListAgents__large_prompts_come_in_pages_of_less_than_gRPC_takes(mesh: Mesh) -> None:
    written = [AgentProfile(agent_id=f"a-{number:02}", system_prompt=LARGEST_PROMPT) for number in range(70)]
    for agent in written:
        await mesh.put_agent(agent)
    pages = await agent_pages(mesh, page_size=500)
    assert max(page.ByteSize() for page in pages) < GRPC_TAKES_BYTES
    listed = [agent for page in pages for agent in page.agents if agent.agent_id != "default"]
    assert list(map(content_of, listed)) == written
    assert len(pages) == 7

    client = client_of(mesh, client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600))
    assert [agent.agent_id for agent in await client.agents()] == ids_of(pages)


async def test_ListAgents__long_lists_are_as_large_as_prompts(mesh: Mesh, session_database: Database) -> None:
    ids = await fill_agents(
        session_database, mesh.tenant, 400, spawnable=tuple(f"{number:03}{'x' * 60}" for number in range(256))
    )
    pages = await agent_pages(mesh, page_size=500)
    assert max(page.ByteSize() for page in pages) < GRPC_TAKES_BYTES
    assert ids_of(pages) == ["default", *ids]


async def test_ListAgents__an_agent_larger_than_a_page_is_a_page(
    mesh: Mesh, session_database: Database
) -> None:
    async with session_database.transaction(mesh.tenant) as connection:
        await connection.execute(
            "update agents set system_prompt = repeat('x', 5000000) where agent_id = 'default'"
        )
    await mesh.put_agent(AgentProfile(agent_id="small"))
    pages = await agent_pages(mesh)
    assert [[agent.agent_id for agent in page.agents] for page in pages] == [["default"], ["small"]]


@pytest.mark.parametrize(
    ("page_size", "sizes"), [(0, [50, 50]), (1, [1] * 100), (33, [33, 33, 33, 1]), (500, [100])]
)
async def test_ListAgents__pages_of_the_size_asked_for(
    mesh: Mesh, session_database: Database, page_size: int, sizes: list[int]
) -> None:
    ids = await fill_agents(session_database, mesh.tenant, 99)
    pages = await agent_pages(mesh, page_size=page_size)
    assert [len(page.agents) for page in pages] == sizes
    assert ids_of(pages) == ["default", *ids]


async def test_ListAgents__no_page_has_another_tenants(mesh: Mesh, session_database: Database) -> None:
    await fill_agents(session_database, mesh.tenant, 5)
    other = f"t-{uuid4().hex[:12]}"
    await mesh.create_tenant(other)
    await mesh.client(
        TenantServiceStub(mesh.peer.channel).UpdateAgent,
        tenant_pb.UpdateAgentRequest(
            allow_missing=True, update_mask={"paths": ["*"]}, agent=AgentProfile(agent_id="filler-0003-own")
        ),
        tenant=other,
    )
    assert ids_of(await agent_pages(mesh, tenant=other, page_size=1)) == ["default", "filler-0003-own"]
    behind = tenant_pb.ListAgentsRequest()
    with page_key_from(mesh.keys, "session"):
        behind.page_token = page_token(["filler-0002"], behind, other, "")
    rest = await mesh.client(TenantServiceStub(mesh.peer.channel).ListAgents, behind, tenant=other)
    assert ids_of([rest]) == ["filler-0003-own"]
    assert ids_of(await agent_pages(mesh, tenant=f"t-{uuid4().hex[:12]}")) == []


@pytest.mark.parametrize("token", ["*", "A", "a b", "ä", "-a", "a" * 65])
async def test_page_token_that_no_page_gave(mesh: Mesh, token: str) -> None:
    stub = TenantServiceStub(mesh.peer.channel)
    for call in (
        mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(page_token=token)),
        mesh.client(stub.ListAgents, tenant_pb.ListAgentsRequest(page_token=token)),
        mesh.operator("ListTenants", tenant_pb.ListTenantsRequest(page_token=token)),
    ):
        error = await refusal(call)
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_REQUEST, "page_token")


@pytest.mark.parametrize("page_size", [-1, 501])
async def test_page_size_that_no_page_has(mesh: Mesh, page_size: int) -> None:
    stub = TenantServiceStub(mesh.peer.channel)
    for call in (
        mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(page_size=page_size)),
        mesh.client(stub.ListAgents, tenant_pb.ListAgentsRequest(page_size=page_size)),
        mesh.operator("ListTenants", tenant_pb.ListTenantsRequest(page_size=page_size)),
    ):
        error = await refusal(call)
        assert (error.reason, error.violations[0].field) == (Reason.INVALID_REQUEST, "page_size")


async def test_UpdateAgent__as_many_as_a_tenant_may_have_and_no_more(
    mesh: Mesh, session_database: Database
) -> None:
    await fill_agents(
        session_database, mesh.tenant, LIMIT - 3
    )  # With the agent `default` it may have two more.
    new = [mesh.put_agent(AgentProfile(agent_id=f"new-{number}")) for number in range(10)]
    outcomes = await asyncio.gather(*new, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, MeshError)]
    assert [(error.reason, error.status, error.facts) for error in refused] == [
        (Reason.AGENT_COUNT_EXCEEDED, Status.RESOURCE_EXHAUSTED, {"limit": "1000", "agents": "1000"})
    ] * 8
    assert outcomes.count(None) == 2
    assert len(ids_of(await agent_pages(mesh, page_size=500))) == LIMIT


async def test_UpdateAgent__one_that_exists_is_replaced_however_many_there_are(
    mesh: Mesh, session_database: Database
) -> None:
    [first, *_] = await fill_agents(session_database, mesh.tenant, LIMIT + 200)
    await mesh.put_agent(AgentProfile(agent_id=first, system_prompt="replaced"))
    assert (await refusal(mesh.put_agent(AgentProfile(agent_id="new")))).reason is Reason.AGENT_COUNT_EXCEEDED
    pages = await agent_pages(mesh, page_size=500)
    assert len(ids_of(pages)) == LIMIT + 201
    assert [
        agent.agent_id for page in pages for agent in page.agents if agent.system_prompt == "replaced"
    ] == [first]

    other = f"t-{uuid4().hex[:12]}"
    await mesh.create_tenant(other)
    request = tenant_pb.UpdateAgentRequest(
        allow_missing=True, update_mask={"paths": ["*"]}, agent=AgentProfile(agent_id="new")
    )
    await mesh.client(TenantServiceStub(mesh.peer.channel).UpdateAgent, request, tenant=other)


@pytest.fixture
async def named_at_length(mesh: Mesh, postgres: Any) -> AsyncIterator[list[str]]:
    """Create twenty tenants with names of 256 KiB and one over a page; return them by id."""
    ids = [f"{mesh.tenant}-{number:02}" for number in range(20)]
    values = {"ids": ids, "tenant": mesh.tenant, "longest": ids[7]}
    async with superuser(postgres) as link:
        await link.execute(
            """
            insert into session.tenants (tenant_id, display_name, settings, max_running_run_count,
                max_queued_run_count, ready)
            select id, repeat('x', case when id = %(longest)s then 3500000 else 262144 end), settings,
            max_running_run_count, max_queued_run_count, true
            from session.tenants, unnest(%(ids)s::text[]) id where tenant_id = %(tenant)s
            """,
            values,
        )
        yield ids
        await link.execute("delete from session.tenants where tenant_id = any (%(ids)s)", values)


@pytest.mark.parametrize("page_size", [0, 4, 500])
async def test_ListTenants__every_one_once_in_pages_of_less_than_gRPC_takes(
    mesh: Mesh, named_at_length: list[str], page_size: int
) -> None:
    with page_key_from(mesh.keys, "session"):
        token = page_token([mesh.tenant], tenant_pb.ListTenantsRequest(), "", "")
    pages = await mesh.tenant_pages(page_size=page_size, page_token=token)
    assert max(page.ByteSize() for page in pages) < GRPC_TAKES_BYTES
    assert max(len(page.tenants) for page in pages) <= (page_size or 50)
    listed = [tenant.tenant_id for page in pages for tenant in page.tenants]
    assert listed[: len(named_at_length)] == named_at_length
    assert listed == sorted(set(listed))


async def test_ListTenants__the_client_shows_all(mesh: Mesh, named_at_length: list[str]) -> None:
    operator = client_of(mesh, client_tokens(mesh.keys).admin_token("operator", 600))
    listed = [tenant.tenant_id for tenant in await operator.tenants()]
    assert set(listed) >= {mesh.tenant, *named_at_length}
    assert len(set(listed)) == len(listed)


async def test_ListTenants__one_that_is_being_made_is_not_shown_and_one_that_is_being_deleted_is(
    mesh: Mesh, postgres: Any
) -> None:
    async def shown() -> list[tenant_pb2.Tenant]:
        pages = await mesh.tenant_pages()
        return [tenant for page in pages for tenant in page.tenants if tenant.tenant_id == mesh.tenant]

    assert [tenant.state for tenant in await shown()] == [tenant_pb2.TENANT_STATE_ACTIVE]
    async with superuser(postgres) as link:
        await link.execute("update session.tenants set ready = false where tenant_id = %s", (mesh.tenant,))
    assert await shown() == []
    await mesh.delete_tenant()
    [deleted] = await shown()
    assert deleted.state == tenant_pb2.TENANT_STATE_DELETING
    assert deleted.deletion.HasField("request_time")
