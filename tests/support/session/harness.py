"""Calling the session service as anyone who may."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from google.longrunning.operations_pb2 import Operation
from spawnmesh.attachment_blob.v1.attachment_pb2 import ENCODING_UTF8, InlineAttachment
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.settings import SessionSettings

from tests.support.serving import client_tokens, runner_tokens

OpenMesh = Callable[..., Any]


@dataclass
class Mesh:
    """Calls the session service as a tenant's client, an operator, a runner or a run."""

    peer: Peer
    keys: Path
    settings: SessionSettings
    tenant: str = field(default_factory=lambda: f"t-{uuid4().hex[:12]}")

    async def client(
        self, call: Callable[..., Any], request: Any, *, tenant: str = "", timeout: float = 60.0
    ) -> Any:
        with use_token(client_tokens(self.keys).client_token(tenant or self.tenant, "test", 600)):
            return await self.peer.unary(call, request, timeout_seconds=timeout)

    async def run(self, claimed: run_pb.ClaimedRun, call: Callable[..., Any], request: Any) -> Any:
        with use_token(claimed.run_token):
            return await self.peer.unary(call, request, timeout_seconds=60.0)

    @property
    def sessions(self) -> Any:
        return SessionServiceStub(self.peer.channel)

    @property
    def runs(self) -> Any:
        return RunServiceStub(self.peer.channel)

    async def create_tenant(self, tenant: str = "", settings: TenantSettings | None = None) -> None:
        request = tenant_pb.CreateTenantRequest(tenant_id=tenant or self.tenant, settings=settings)
        with use_token(client_tokens(self.keys).admin_token("operator", 600)):
            await self.peer.unary(
                TenantServiceStub(self.peer.channel).CreateTenant, request, timeout_seconds=60.0
            )

    async def operator(self, name: str, request: Any) -> Any:
        call = getattr(TenantServiceStub(self.peer.channel), name)
        with use_token(client_tokens(self.keys).admin_token("operator", 600)):
            return await self.peer.unary(call, request, timeout_seconds=60.0)

    async def delete_tenant(self, request_id: str = "") -> Operation:
        request = tenant_pb.DeleteTenantRequest(tenant_id=self.tenant, request_id=request_id or uuid4().hex)
        operation: Operation = await self.operator("DeleteTenant", request)
        return operation

    async def tenant_state(self) -> Tenant:
        tenant: Tenant = (
            await self.operator("GetTenant", tenant_pb.GetTenantRequest(tenant_id=self.tenant))
        ).tenant
        return tenant

    async def tenant_pages(self, **asked: Any) -> list[tenant_pb.ListTenantsResponse]:
        """Every page of the operator's list, from the one asked for."""
        request = tenant_pb.ListTenantsRequest(**asked)
        pages = [await self.operator("ListTenants", request)]
        while pages[-1].next_page_token:
            request.page_token = pages[-1].next_page_token
            pages.append(await self.operator("ListTenants", request))
        return pages

    async def put_agent(self, agent: AgentProfile) -> None:
        await self.client(
            TenantServiceStub(self.peer.channel).UpdateAgent,
            tenant_pb.UpdateAgentRequest(allow_missing=True, update_mask={"paths": ["*"]}, agent=agent),
        )

    async def spawn(self, **fields: Any) -> session_pb2.Session:
        request = pb.SpawnSessionRequest(**{"request_id": uuid4().hex, "task": "count", **fields})
        return (await self.client(self.sessions.SpawnSession, request)).session

    async def get(self, session_id: str, *, tenant: str = "") -> session_pb2.Session:
        request = pb.GetSessionRequest(session_id=session_id)
        return (await self.client(self.sessions.GetSession, request, tenant=tenant)).session

    async def claim(
        self, session_id: str = "", *, wait_seconds: float = 60.0, runtimes: Sequence[int] = ()
    ) -> run_pb.ClaimedRun:
        """Claims until the run of that session comes.

        Runs of other tests that come meanwhile can be claimed again at the end of their leases.
        """
        async with asyncio.timeout(wait_seconds):
            while True:
                for claimed in await self.claim_any(runtimes=runtimes):
                    if not session_id or claimed.session.session_id == session_id:
                        return claimed

    async def claim_any(
        self, *, wait_seconds: float = 2.0, limit: int = 1, runtimes: Sequence[Any] = ()
    ) -> list[run_pb.ClaimedRun]:
        request = run_pb.ClaimRunsRequest(runner_id="test", max_run_count=limit, runtimes=runtimes)
        request.wait.FromMilliseconds(int(wait_seconds * 1000))
        with use_token(runner_tokens(self.keys).runner_token()):
            return list(
                (
                    await self.peer.unary(self.runs.ClaimRuns, request, timeout_seconds=wait_seconds + 60.0)
                ).runs
            )

    async def spawn_as(self, claimed: run_pb.ClaimedRun, **fields: Any) -> session_pb2.Session:
        request = pb.SpawnSessionRequest(**{"request_id": uuid4().hex, "task": "count", **fields})
        return (await self.run(claimed, self.sessions.SpawnSession, request)).session


def attachment(name: str = "a.txt", content: str = "hello") -> InlineAttachment:
    """A small text file."""
    return InlineAttachment(name=name, content=content, encoding=ENCODING_UTF8, mime_type="text/plain")
