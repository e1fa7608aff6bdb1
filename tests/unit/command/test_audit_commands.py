"""Commands that list and verify the audit log, over several services."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceServicer, add_AuditServiceServicer_to_server
from spawnmesh.policy.v1.policy_pb2 import CALLER_CLIENT
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    served,
    unset,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants

__all__ = ["unset"]


def event(service: str, number: int, **fields: Any) -> event_pb.AuditEvent:
    found = event_pb.AuditEvent(
        service=service,
        tenant_id="acme",
        sequence=number,
        event_id=f"aud_{number}",
        call_count=1,
        method="spawnmesh.session.v1.SessionService/KillSession",
        caller_kind=CALLER_CLIENT,
        subject="ann",
        resources=["session_id=ses_1"],
        code="OK",
        peer="10.0.0.7",
        hash=bytes(32),
    )
    found.event_time.FromSeconds(1_795_766_400 + number)
    found.MergeFrom(event_pb.AuditEvent(**fields))
    return found


@dataclass
class FakeAudit(AuditServiceServicer):
    """A page for each event, which is empty for None; records the requests."""

    service: str
    events: list[event_pb.AuditEvent | None]
    breaks: list[event_pb.AuditChainBreak] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    async def ListAuditEvents(self, request: Any, context: Any) -> Any:
        copy = pb.ListAuditEventsRequest()
        copy.CopyFrom(request)
        self.requests.append(copy)
        place = int(request.page_token or 0)
        more = str(place + 1) if place + 1 < len(self.events) else ""
        page = [found for found in self.events[place : place + 1] if found is not None]
        return pb.ListAuditEventsResponse(events=page, next_page_token=more)

    async def VerifyAuditEvents(self, request: Any, context: Any) -> Any:
        if not request.page_token:
            return pb.VerifyAuditEventsResponse(event_count=1, breaks=self.breaks, next_page_token="1")
        head = event_pb.AuditChainHead(tenant_id="acme", first_sequence=1, last_sequence=2, hash=bytes(32))
        return pb.VerifyAuditEventsResponse(event_count=1, heads=[head])


@pytest.fixture
def logs() -> dict[str, FakeAudit]:
    denied = event("hook", 2, code="PERMISSION_DENIED", reason="ROLE_MISSING", call_count=11)
    return {
        "session": FakeAudit("session", [event("session", 1), None, event("session", 3)]),
        "hook": FakeAudit("hook", [denied]),
    }


@pytest.fixture
async def mesh(keys: Path, tmp_path: Path, logs: dict[str, FakeAudit]) -> AsyncIterator[FakeMesh]:
    def add_session(server: MeshServer) -> None:
        add_AuditServiceServicer_to_server(logs["session"], server)

    def add_hook(server: MeshServer) -> None:
        add_AuditServiceServicer_to_server(logs["hook"], server)

    async with served("session", keys, add_session) as session, served("hook", keys, add_hook) as hook:
        targets = {"session": session, "hook": hook}
        write_mesh_file(tmp_path, keys, targets)
        yield FakeMesh(tmp_path, FakeSessions(), FakeTenants(), FakeTranscript(), targets)


async def test_events_of_all_services_are_listed_by_time(mesh: FakeMesh) -> None:
    shown = await mesh.run("audit", "list")
    for_programs = await mesh.run("audit", "list", "--json")
    header, *rows = (line.split() for line in shown.stdout.splitlines())
    assert header == ["time", "tenant", "caller", "service", "call", "outcome", "calls", "from", "resources"]
    assert [row[5] for row in rows] == ["session", "hook", "session"]
    assert rows[1][2:] == [
        "acme", "client", "ann", "hook", "KillSession", "PERMISSION_DENIED", "ROLE_MISSING", "11",
        "10.0.0.7", "session_id=ses_1",
    ]  # fmt: skip
    listed = json.loads(for_programs.stdout)
    assert [one["sequence"] for one in listed["events"]] == ["1", "2", "3"]
    assert listed["events"][0]["hash"] == "00" * 32
    assert listed["has_more"] is False


async def test_options_are_the_filters_of_the_request(mesh: FakeMesh, logs: dict[str, FakeAudit]) -> None:
    before = utc_now().timestamp()
    options = ("--tenant", "acme", "--since", "1h", "--method", "KillSession", "--outcome", "denied")
    ran = await mesh.run("audit", "list", *options, "--service", "session", "--trace", "0" * 32)
    assert ran.exit_code == 0
    request = logs["session"].requests[0]
    assert (request.tenant_id, request.method, request.trace_id) == ("acme", "KillSession", "0" * 32)
    assert request.outcome == event_pb.AUDIT_OUTCOME_DENIED
    assert -5 < request.start_time.seconds - (before - 3600) < 60
    assert logs["hook"].requests == []


async def test_list_that_is_cut_says_so(mesh: FakeMesh) -> None:
    shown = await mesh.run("audit", "list", "--limit", "2")
    assert "there are more than 2 events" in shown.stdout
    assert len(shown.stdout.splitlines()) == 4


@pytest.mark.parametrize("since", ["yesterday", "1w", "99999999999999d", ""])
async def test_time_that_cannot_be_read_is_wrong_usage(mesh: FakeMesh, since: str) -> None:
    ran = await mesh.run("audit", "list", "--since", since)
    assert ran.exit_code == 2


async def test_verification_prints_each_chain_with_its_last_hash(mesh: FakeMesh) -> None:
    shown = await mesh.run("audit", "verify")
    assert shown.exit_code == 0
    header, *rows = (line.split() for line in shown.stdout.splitlines())
    assert header == ["service", "tenant", "events", "state", "last", "hash"]
    assert rows == [
        ["hook", "acme", "1-2", "intact", "00" * 32],
        ["session", "acme", "1-2", "intact", "00" * 32],
    ]


async def test_broken_chain_ends_with_exit_code_1(mesh: FakeMesh, logs: dict[str, FakeAudit]) -> None:
    broken = event_pb.AuditChainBreak(tenant_id="acme", sequence=2, defect=event_pb.AUDIT_DEFECT_MISSING)
    logs["hook"].breaks.append(broken)
    shown = await mesh.run("audit", "verify")
    for_programs = await mesh.run("audit", "verify", "--json", "--service", "hook")
    assert (shown.exit_code, for_programs.exit_code) == (1, 1)
    assert "BROKEN at 2 (missing)" in shown.stdout
    (one,) = json.loads(for_programs.stdout)["chains"]
    assert one["breaks"] == [{"sequence": 2, "defect": "missing"}]
    assert json.loads(for_programs.stdout)["intact"] is False
