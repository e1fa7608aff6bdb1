"""Services with scripted answers in the test's own process.

They use real gRPC, real tokens and the real interceptors.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from opentelemetry.trace import NoOpTracer
from spawnmesh.operations.v1.operation_service_pb2_grpc import add_OperationServiceServicer_to_server
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1.approval_service_pb2_grpc import add_ApprovalServiceServicer_to_server
from spawnmesh.session.v1.session_service_pb2_grpc import add_SessionServiceServicer_to_server
from spawnmesh.session.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from spawnmesh.session.v1.token_service_pb2_grpc import add_TokenServiceServicer_to_server
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_command.cli.app import build_app, main
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.health import Health
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import AUDIENCE, TokenMinter, TokenVerifier
from structlog.testing import capture_logs
from typer.main import get_command
from typer.testing import CliRunner

from tests.support.command.approvals import FakeApprovals
from tests.support.command.budgets import FakeBudgets
from tests.support.command.live import FakeLive, FakeWatch
from tests.support.command.tenants import FakeTenants, FakeTokens

SESSION_ID = new_id(IdKind.SESSION)
RUN_ID = new_id(IdKind.RUN)
_LIVE = (
    session_pb2.RUN_STATE_UNSPECIFIED,
    session_pb2.RUN_STATE_QUEUED,
    session_pb2.RUN_STATE_RUNNING,
    session_pb2.RUN_STATE_FINALIZING,
    session_pb2.RUN_STATE_WAITING_APPROVAL,
    session_pb2.RUN_STATE_WAITING_BUDGET,
)


def session_in(state: Any, result: str = "", **fields: Any) -> session_pb2.Session:
    """Return an active session whose run has this state."""
    run = session_pb2.Run(run_id=RUN_ID, session_id=SESSION_ID, state=state, result_text=result, **fields)
    return session_pb2.Session(
        session_id=SESSION_ID, state=session_pb2.SESSION_STATE_ACTIVE, agent_id="default", latest_run=run
    )


def event(number: int, kind: Any) -> session_pb2.SessionEvent:
    """Return an event about no run."""
    return session_pb2.SessionEvent(number=number, kind=kind)


@dataclass
class FakeSessions(FakeWatch):
    """Record the requests.

    `refusal` answers spawns, `wait_refusals` one wait each, and `interrupted` interrupts.
    """

    known: list[session_pb2.Session] = field(
        default_factory=lambda: [session_in(session_pb2.RUN_STATE_QUEUED)]
    )
    outcome: session_pb2.Session = field(
        default_factory=lambda: session_in(session_pb2.RUN_STATE_SUCCEEDED, "done")
    )
    refusal: MeshError | None = None
    wait_refusals: list[MeshError] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    interrupted: session_pb2.Run | None = None
    blobs: Any = None

    async def SpawnSession(self, request: Any, context: Any) -> Any:
        self._note(request)
        if self.refusal is not None:
            raise self.refusal
        return session_rpc.SpawnSessionResponse(session=session_in(session_pb2.RUN_STATE_QUEUED))

    async def GetSession(self, request: Any, context: Any) -> Any:
        for session in self.known:
            if session.session_id == request.session_id:
                return session_rpc.GetSessionResponse(session=session)
        raise not_found("session", request.session_id)

    async def ListSessions(self, request: Any, context: Any) -> Any:
        self._note(request)
        start = int(request.page_token or 0)
        page = self.known[start : start + request.page_size] if request.page_size else self.known
        more = str(start + len(page)) if start + len(page) < len(self.known) else ""
        return session_rpc.ListSessionsResponse(sessions=page, next_page_token=more)

    async def ListOutputSets(self, request: Any, context: Any) -> Any:
        return self.blobs.page(request)

    async def WaitSession(self, request: Any, context: Any) -> Any:
        self._note(request)
        if self.wait_refusals:
            raise self.wait_refusals.pop()
        ended = self.outcome.latest_run.state not in _LIVE
        return session_rpc.WaitSessionResponse(session=self.outcome, done=ended)

    async def WatchSession(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._note(request)
        async for message in super().WatchSession(request, context):
            yield message

    async def SendMessage(self, request: Any, context: Any) -> Any:
        self._note(request)
        return session_rpc.SendMessageResponse(run=session_pb2.Run(run_id=RUN_ID))

    async def InterruptRun(self, request: Any, context: Any) -> Any:
        self._note(request)
        return session_rpc.InterruptRunResponse(run=self.interrupted)

    async def KillSession(self, request: Any, context: Any) -> Any:
        self._note(request)
        return session_rpc.KillSessionResponse(killed_run_count=2)

    async def ArchiveSession(self, request: Any, context: Any) -> Any:
        self._note(request)
        return session_rpc.ArchiveSessionResponse(session=self.outcome, archived_session_count=3)

    async def DeleteSession(self, request: Any, context: Any) -> Any:
        self._note(request)
        return session_rpc.DeleteSessionResponse(deleted_session_count=2, killed_run_count=1)

    def _note(self, request: Any) -> None:
        self.requests.append(request)
        self.tenants.append(current_caller().tenant_id)


@dataclass
class FakeTranscript(TranscriptServiceServicer):
    """Serve one transcript for every session, except those that have their own, or none."""

    entries: list[Entry] = field(default_factory=list)
    of_sessions: dict[str, list[Entry]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    pages: int = 0

    async def ListEntries(self, request: Any, context: Any) -> Any:
        self.pages += 1
        if request.session_id in self.missing:
            raise not_found("transcript", request.session_id)
        entries = self.of_sessions.get(request.session_id, self.entries)
        after_seq = int(request.page_token or request.after_seq)
        found = [entry for entry in entries if entry.seq > after_seq]
        page = found[: request.page_size or 100]
        head = transcript_rpc.Head(seq=entries[-1].seq if entries else 0)
        more = str(page[-1].seq) if len(found) > len(page) else ""
        return transcript_rpc.ListEntriesResponse(entries=page, head=head, next_page_token=more)


@asynccontextmanager
async def served(
    name: str,
    keys: Path,
    *add: Callable[[MeshServer], None],
    audience: str = AUDIENCE,
    clock: Clock = utc_now,
    port: int = 0,
    health: Health | None = None,
) -> AsyncIterator[str]:
    """Serve on loopback until the block ends; yield `host:port`."""
    settings = ProcessSettings(log_level="error")
    verifier = TokenVerifier(JwksFile(keys / "jwks.json"), audience=audience, clock=clock)
    minter = TokenMinter("session", keys / "session.pem")
    process = Process(name, settings, minter, verifier, NoOpTracer(), health=health or Health())
    server = build_server(process)
    for added in add:
        added(server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    with capture_logs():  # Logs would appear between the lines of the command.
        await server.start()
        try:
            yield f"127.0.0.1:{bound}"
        finally:
            await server.stop(None)


@dataclass
class FakeMesh:
    """The services behind the targets in `mesh.json`."""

    data: Path
    sessions: FakeSessions
    tenants: FakeTenants
    transcript: FakeTranscript
    targets: dict[str, str]
    tokens: FakeTokens = field(default_factory=FakeTokens, kw_only=True)
    approvals: FakeApprovals = field(default_factory=FakeApprovals, kw_only=True)
    budgets: FakeBudgets = field(default_factory=FakeBudgets, kw_only=True)

    @property
    def live(self) -> FakeLive:
        """The messages of transcripts that watchers get."""
        return self.sessions.live

    async def run(self, *arguments: str) -> Any:
        """Run the command in another thread with its own event loop, and return its result."""
        return await asyncio.to_thread(invoke, "--data", str(self.data), *arguments)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str


def invoke(*arguments: str, app: typer.Typer | None = None) -> Ended:
    """Run `spawnmesh`, or the command of `app`; anything but an orderly exit fails the test."""
    command = spawnmesh() if app is None else get_command(app)
    with CliRunner().isolation() as (stdout, stderr, _):
        with pytest.raises(SystemExit) as ended:
            command.main(args=arguments, prog_name="spawnmesh")
        sys.stdout.flush()
        sys.stderr.flush()
        return Ended(int(ended.value.code or 0), stdout.getvalue().decode(), stderr.getvalue().decode())


@cache
def spawnmesh() -> Any:
    """Build the command once for all tests: that takes longer than most commands."""
    return get_command(build_app())


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command as its script does, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["spawnmesh", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def add_sessions(
    sessions: FakeSessions,
    tenants: FakeTenants,
    tokens: FakeTokens | None = None,
    approvals: FakeApprovals | None = None,
) -> Callable[[MeshServer], None]:
    """Register the session service's RPCs for clients."""

    def add(server: MeshServer) -> None:
        add_SessionServiceServicer_to_server(sessions, server)
        add_TenantServiceServicer_to_server(tenants, server)
        add_OperationServiceServicer_to_server(tenants, server)
        add_TokenServiceServicer_to_server(tokens or FakeTokens(), server)
        add_ApprovalServiceServicer_to_server(approvals or FakeApprovals(), server)

    return add


def write_mesh_file(data: Path, keys: Path, targets: dict[str, str]) -> None:
    """Write the file as a mesh on this machine does."""
    content = {"targets": targets, "keys": str(keys), "traces": str(data / "traces.otlp"), "pids": {}}
    (data / "mesh.json").write_text(json.dumps(content))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the developer's environment and working directory from the test."""
    for name in ("SESSION_TARGET", "TOKEN", "TENANT", "DATA", "SIGNING_KEY_FILE", "TOKEN_AUDIENCE"):
        monkeypatch.delenv(f"SPAWNMESH_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def mesh(keys: Path, tmp_path: Path) -> AsyncIterator[FakeMesh]:
    """Return a session and a transcript service that `mesh.json` names."""
    sessions, tenants, tokens, transcript = FakeSessions(), FakeTenants(), FakeTokens(), FakeTranscript()
    approvals, budgets = FakeApprovals(), FakeBudgets()
    add = add_sessions(sessions, tenants, tokens, approvals)

    def add_transcript(server: MeshServer) -> None:
        add_TranscriptServiceServicer_to_server(transcript, server)

    async with (
        served("session", keys, add, budgets.add_to) as session_target,
        served("transcript", keys, add_transcript) as transcript_target,
    ):
        targets = {"session": session_target, "transcript": transcript_target}
        write_mesh_file(tmp_path, keys, targets)
        parts = (tmp_path, sessions, tenants, transcript, targets)
        yield FakeMesh(*parts, tokens=tokens, approvals=approvals, budgets=budgets)
