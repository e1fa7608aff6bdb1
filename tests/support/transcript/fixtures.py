"""The transcript service on a real PostgreSQL and a real server, and callers of every kind."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings as TenantTranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support import tenancy
from tests.support.postgres.migrating import migrate_once
from tests.support.transcript.operating import idle_worker
from tests.support.transcript.tables import Superuser

if TYPE_CHECKING:
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub


@dataclass(frozen=True)
class Service:
    """The running service, and the token minters of its callers."""

    peer: Peer
    session_minter: TokenMinter
    hook_minter: TokenMinter
    client_minter: TokenMinter
    dsn: ServiceDsn
    target: str
    jobs: JobWorker
    """It carries operations when a test calls it."""
    tenant_ids: set[str] = field(default_factory=set)
    """Tenants that were prepared."""

    @property
    def stub(self) -> "TranscriptServiceAsyncStub":
        return TranscriptServiceStub(self.peer.channel)

    def session(self, tenant_id: str | None = None) -> "Session":
        return Session(self, tenant_id or f"t-{secrets.token_hex(8)}")


@dataclass(frozen=True)
class Session:
    """A session of a tenant, with the calls of the session service, its runs and clients."""

    service: Service
    tenant_id: str
    session_id: str = field(default_factory=lambda: new_id(IdKind.SESSION))

    def sibling(self) -> "Session":
        """Return another session of the same tenant."""
        return self.service.session(self.tenant_id)

    def service_token(self) -> str:
        return self.service.session_minter.service_token(self.tenant_id)

    def client_token(self) -> str:
        return self.service.client_minter.client_token(self.tenant_id, "tester", 300)

    def run_token(self, claim: pb.WriterClaim, *, has_budget: bool = False, agent_id: str = "") -> str:
        return self.service.session_minter.run_token(
            self.tenant_id,
            self.session_id,
            claim.run_id,
            claim.epoch,
            300,
            has_budget=has_budget,
            agent_id=agent_id,
        )

    def mirror_token(self) -> str:
        """Return the token of a client that may append mirrors."""
        return self.service.client_minter.client_token(
            self.tenant_id, "gateway", 300, permissions=["unowned_append"]
        )

    async def create(
        self,
        *,
        fork_of: "Session | None" = None,
        max_token_count: int = 10_000,
        up_to_seq: int = 0,
        child_of: "Session | None" = None,
        entries: Sequence[entry_pb.EntryBody] = (),
        request_id: str = "",
    ) -> pb.Head:
        request = pb.CreateTranscriptRequest(
            session_id=self.session_id, entries=entries, request_id=request_id
        )
        if child_of:
            request.parent_session_id = child_of.session_id
        if fork_of:
            request.fork.source_session_id = fork_of.session_id
            request.fork.max_token_count = max_token_count
            request.fork.up_to_seq = up_to_seq
        with use_token(self.service_token()):
            return (
                await self.service.peer.unary(self.service.stub.CreateTranscript, request, timeout_seconds=60)
            ).head

    async def delete(self) -> None:
        with use_token(self.service_token()):
            await self.service.peer.unary(
                self.service.stub.DeleteTranscript,
                pb.DeleteTranscriptRequest(session_id=self.session_id),
                timeout_seconds=60,
            )

    async def enter_tenant(self) -> None:
        """Prepare the tenant with default settings, unless it was prepared before."""
        if self.tenant_id not in self.service.tenant_ids:
            await self.prepare_tenant(1)

    async def prepare_tenant(self, version: int, *, token: str = "", **settings: Any) -> int:
        """Prepare the tenant and return the settings version in force."""
        wanted = TenantTranscriptSettings(**settings)
        with use_token(token or self.service_token()):
            version = await tenancy.prepare(self.service.peer, version, transcripts=wanted)
        self.service.tenant_ids.add(self.tenant_id)
        return version

    async def purge_tenant(self, version: int = 0, *, token: str = "") -> tenancy.Purged:
        """Call PurgeTenant once."""
        with use_token(token or self.service_token()):
            purged = await tenancy.purge(self.service.peer, version)
        self.service.tenant_ids.discard(self.tenant_id)
        return purged

    async def create_anew(self) -> pb.Head:
        """Create the transcript of the same session again, which requires that the tenant is purged
        first."""
        await self.delete()
        while not (await self.purge_tenant()).done:
            pass
        await self.prepare_tenant(1)
        return await self.create()

    async def acquire(self, epoch: int, *, run_id: str = "", token: str = "") -> pb.WriterClaim:
        claim = pb.WriterClaim(run_id=run_id or new_id(IdKind.RUN), epoch=epoch)
        await self.acquire_claim(claim, token=token)
        return claim

    async def acquire_claim(self, claim: pb.WriterClaim, *, token: str = "") -> pb.Head:
        request = pb.AcquireWriterRequest(session_id=self.session_id, claim=claim)
        with use_token(token or self.run_token(claim)):
            return (
                await self.service.peer.unary(self.service.stub.AcquireWriter, request, timeout_seconds=60)
            ).head

    async def release(self, claim: pb.WriterClaim, *, token: str = "") -> pb.Head:
        request = pb.ReleaseWriterRequest(session_id=self.session_id, claim=claim)
        with use_token(token or self.run_token(claim)):
            return (
                await self.service.peer.unary(self.service.stub.ReleaseWriter, request, timeout_seconds=60)
            ).head

    async def open_window(self, claim: pb.WriterClaim, *, token: str = "") -> pb.Fence:
        request = pb.OpenWindowRequest(session_id=self.session_id, claim=claim)
        with use_token(token or self.run_token(claim)):
            return (
                await self.service.peer.unary(self.service.stub.OpenWindow, request, timeout_seconds=60)
            ).fence

    async def open_with_context(
        self, claim: pb.WriterClaim, context: pb.AssembleContextRequest
    ) -> pb.OpenWindowResponse:
        request = pb.OpenWindowRequest(session_id=self.session_id, claim=claim, context=context)
        with use_token(self.run_token(claim)):
            return await self.service.peer.unary(self.service.stub.OpenWindow, request, timeout_seconds=60)

    async def close_window(self, claim: pb.WriterClaim, fence: pb.Fence, *, token: str = "") -> pb.Fence:
        request = pb.CloseWindowRequest(session_id=self.session_id, claim=claim, fence=fence)
        with use_token(token or self.run_token(claim)):
            return (
                await self.service.peer.unary(self.service.stub.CloseWindow, request, timeout_seconds=60)
            ).fence

    async def append(
        self,
        entries: Sequence[entry_pb.EntryBody],
        *,
        claim: pb.WriterClaim | None = None,
        key: str = "",
        token: str = "",
        fence: pb.Fence | None = None,
        release_writer: bool = False,
    ) -> pb.AppendEntriesResponse:
        """Append as the run of the claim, or as the session service without one, or by the given
        token."""
        request = pb.AppendEntriesRequest(
            session_id=self.session_id,
            claim=claim,
            request_id=key or secrets.token_hex(8),
            entries=entries,
            fence=fence,
            release_writer=release_writer,
        )
        with use_token(token or (self.run_token(claim) if claim else self.service_token())):
            return await self.service.peer.unary(self.service.stub.AppendEntries, request, timeout_seconds=60)

    async def entries(
        self, *, after_seq: int = 0, page_size: int = 1000, token: str = ""
    ) -> list[entry_pb.Entry]:
        return list((await self.page(after_seq=after_seq, page_size=page_size, token=token)).entries)

    async def page(
        self,
        *,
        after_seq: int = 0,
        before_seq: int | None = None,
        page_size: int = 0,
        page_token: str = "",
        kinds: Sequence[entry_pb.EntryKind.ValueType] = (),
        roles: Sequence[content_pb.Role.ValueType] = (),
        token: str = "",
    ) -> pb.ListEntriesResponse:
        """List upwards from `after_seq`, or downwards if `before_seq` is given."""
        request = pb.ListEntriesRequest(
            session_id=self.session_id,
            page_size=page_size,
            page_token=page_token,
            filter=entry_pb.EntryFilter(kinds=kinds, roles=roles),
        )
        if before_seq is None:
            request.after_seq = after_seq
        else:
            request.before_seq = before_seq
        with use_token(token or self.client_token()):
            return await self.service.peer.unary(self.service.stub.ListEntries, request, timeout_seconds=60)

    async def context(self, token_budget: int = 100_000, *, token: str = "") -> pb.AssembleContextResponse:
        request = pb.AssembleContextRequest(session_id=self.session_id, token_budget=token_budget)
        with use_token(token or self.client_token()):
            return await self.service.peer.unary(
                self.service.stub.AssembleContext, request, timeout_seconds=60
            )


@pytest.fixture(scope="module")
async def service(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[Service]:
    """The service, migrated and serving."""
    async with serving(databases["transcript"], keys) as opened:
        yield opened


@asynccontextmanager
async def serving(dsn: ServiceDsn, keys: Path, **settings: Any) -> AsyncIterator[Service]:
    """Serve for the block, with these settings besides those of all tests."""
    await asyncio.to_thread(migrate_once, dsn.owner, "transcript")
    chosen = TranscriptSettings(
        database_url=dsn.app,
        database_max_connections=8,
        jwks_file=keys / "jwks.json",
        signing_key_file=keys / "transcript.pem",
        log_level="error",
        **settings,
    )
    session, hook, client = (
        TokenMinter(issuer, keys / f"{issuer}.pem") for issuer in ("session", "hook", "client")
    )
    async with (
        start_process("transcript", chosen) as process,
        _serving(process, chosen) as port,
        open_peer(process, "transcript", f"127.0.0.1:{port}") as peer,
        idle_worker(chosen) as jobs,
    ):
        yield Service(peer, session, hook, client, dsn, f"127.0.0.1:{port}", jobs)


@asynccontextmanager
async def _serving(process: Process, settings: TranscriptSettings) -> AsyncIterator[int]:
    async with open_service(process, settings) as server:
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)


@pytest.fixture
async def session(service: Service) -> Session:
    """A session of a new tenant with a new transcript."""
    fresh = service.session()
    await fresh.create()
    return fresh


@pytest.fixture
async def superuser(postgres: Postgres) -> AsyncIterator[Superuser]:
    """A connection that bypasses row-level security."""
    dsn = make_conninfo(postgres.superuser_dsn, dbname="spawnmesh", options="-c search_path=transcript")
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


async def waits_for(superuser: Superuser, holder: AsyncConnection[Any]) -> bool:
    """Return whether a transaction waits for a lock of the connection."""
    statement = "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    row = await (await superuser.execute(statement, (holder.info.backend_pid,))).fetchone()
    return bool(row and row[0])


@contextmanager
def refused(reason: Reason) -> Iterator[dict[str, str]]:
    """Expect a refusal for this reason. Yields the facts, which are filled after the block."""
    facts: dict[str, str] = {}
    with pytest.raises(MeshError) as error:
        yield facts
    assert error.value.reason is reason, error.value
    facts.update(error.value.facts)
