"""AuditService: changes and denied calls are recorded with ids, for the tenant and nobody else."""

from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from psycopg import sql
from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceStub
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.impersonation import use_token

from tests.support.postgres.audit import as_superuser
from tests.support.serving import caller_at, client_tokens
from tests.support.session.auditing import admin_of, events_of, operator_of, recorded, refusal_of, verified
from tests.support.session.calls import another, kill
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.revoking import HOUR, id_of, is_refused, revoke
from tests.support.session.worker import work_once
from tests.support.waiting import eventually

OK, DENIED, FAILED = (
    event_pb.AUDIT_OUTCOME_OK,
    event_pb.AUDIT_OUTCOME_DENIED,
    event_pb.AUDIT_OUTCOME_FAILED,
)


async def test_ListAuditEvents__a_change_is_recorded_with_ids_and_without_content(
    mesh: Mesh, postgres: Postgres
) -> None:
    secret = f"the plan {uuid4().hex}"
    name = f"{uuid4().hex}.md"
    session = await mesh.spawn(task=secret, label=secret, attachments=[attachment(name=name)])
    event = await recorded(mesh.peer, operator_of(mesh), "SpawnSession")
    assert event.service == "session"
    assert event.tenant_id == mesh.tenant
    assert event.method == "spawnmesh.session.v1.SessionService/SpawnSession"
    assert (event.caller_kind, event.subject) == (policy_pb2.CALLER_CLIENT, "test")
    assert event.token_id.startswith("tok_")
    assert f"session_id={session.session_id}" in event.resources
    assert (event.code, event.reason, event.call_count) == ("OK", "", 1)
    assert event.event_id.startswith("aud_")
    assert event.peer in ("127.0.0.1", "::1")
    assert abs(event.event_time.seconds - session.create_time.seconds) <= 60
    async with as_superuser(postgres.superuser_dsn, "session") as superuser:
        query = b"select e::text from audit_events e where tenant_id = %s"
        rows = await (await superuser.execute(query, (mesh.tenant,))).fetchall()
    assert rows
    assert not any(secret in row or name in row for (row,) in rows)


async def test_ListAuditEvents__a_denied_call_of_a_reader_is_recorded(mesh: Mesh) -> None:
    session = await mesh.spawn()
    reader = client_tokens(mesh.keys).client_token(mesh.tenant, "mallory", 60, role=ClientRole.READER)
    request = session_pb.KillSessionRequest(session_id=session.session_id)
    assert await refusal_of(mesh, mesh.sessions.KillSession, request, reader) is Reason.ROLE_MISSING
    event = await recorded(mesh.peer, operator_of(mesh), "KillSession", outcome=DENIED)
    assert (event.code, event.reason, event.subject) == ("PERMISSION_DENIED", "ROLE_MISSING", "mallory")
    assert event.token_id == id_of(reader)
    assert list(event.resources) == [], "the request of a denied call is not read"


async def test_ListAuditEvents__a_revoked_token_is_recorded_also_where_it_only_reads(mesh: Mesh) -> None:
    stolen = client_tokens(mesh.keys).client_token(mesh.tenant, "thief", HOUR)
    await revoke(mesh, operator_of(mesh), token_id=id_of(stolen))
    await eventually(is_refused(mesh, stolen))
    event = await recorded(mesh.peer, operator_of(mesh), "ListSessions")
    assert (event.code, event.reason) == ("UNAUTHENTICATED", "TOKEN_REVOKED")
    assert (event.subject, event.token_id) == ("thief", id_of(stolen))
    revoked = await recorded(mesh.peer, operator_of(mesh), "RevokeToken")
    assert f"token_id={id_of(stolen)}" in revoked.resources


async def test_ListAuditEvents__alike_denials_are_one_event_with_their_number(mesh: Mesh) -> None:
    subject = uuid4().hex
    reader = client_tokens(mesh.keys).client_token(mesh.tenant, subject, 60, role=ClientRole.READER)
    request = session_pb.DeleteSessionRequest(session_id="ses_" + "0" * 26)
    for _ in range(60):
        await refusal_of(mesh, mesh.sessions.DeleteSession, request, reader)

    async def all_are_counted() -> bool:
        events = await events_of(mesh.peer, operator_of(mesh), method="DeleteSession")
        return sum(event.call_count for event in events) == 60 and len(events) < 30

    await eventually(all_are_counted)


async def test_ListAuditEvents__a_call_without_a_token_is_for_operators_of_the_mesh(mesh: Mesh) -> None:
    start = Timestamp()
    start.GetCurrentTime()
    request = session_pb.ListSessionsRequest()
    assert await refusal_of(mesh, mesh.sessions.ListSessions, request, "nonsense") is Reason.TOKEN_INVALID
    event = await recorded(
        mesh.peer,
        admin_of(mesh),
        "ListSessions",
        start_time=start,
        matching=lambda event: event.reason == "TOKEN_INVALID",
    )
    assert (event.tenant_id, event.caller_kind, event.subject, event.token_id) == ("", 0, "", "")
    assert all(event.reason != "TOKEN_INVALID" for event in await events_of(mesh.peer, operator_of(mesh)))


async def test_ListAuditEvents__filters_and_pages(mesh: Mesh) -> None:
    session = await mesh.spawn()
    await kill(mesh, session.session_id)
    unknown = session_pb.KillSessionRequest(session_id="ses_" + "0" * 26)
    assert await refusal_of(mesh, mesh.sessions.KillSession, unknown, operator_of(mesh)) is Reason.NOT_FOUND
    failed = await recorded(mesh.peer, operator_of(mesh), "KillSession", outcome=FAILED)
    assert failed.reason == "NOT_FOUND"
    killed = await recorded(mesh.peer, operator_of(mesh), "KillSession", outcome=OK)
    full = "spawnmesh.session.v1.SessionService/KillSession"
    assert {event.event_id for event in await events_of(mesh.peer, operator_of(mesh), method=full)} == {
        failed.event_id,
        killed.event_id,
    }
    everything = await events_of(mesh.peer, operator_of(mesh))
    paged = await events_of(mesh.peer, operator_of(mesh), page_size=1)
    assert [event.event_id for event in paged] == [event.event_id for event in everything]
    times = [event.event_time.ToNanoseconds() for event in everything]
    assert times == sorted(times)
    later = await events_of(mesh.peer, operator_of(mesh), start_time=failed.event_time)
    earlier = await events_of(mesh.peer, operator_of(mesh), end_time=failed.event_time)
    assert [event.event_id for event in (*earlier, *later)] == [event.event_id for event in everything]
    of_trace = await events_of(mesh.peer, operator_of(mesh), trace_id="0" * 31 + "1")
    assert list(of_trace) == []


@pytest.mark.parametrize("token", ["x", "WyJhIl0=", "WzEsMiwzXQ==", "WyJhIiwgIlx1MDAwMCIsIDFd"])
async def test_ListAuditEvents__refuses_a_token_that_no_page_gave(mesh: Mesh, token: str) -> None:
    stub = AuditServiceStub(mesh.peer.channel)
    for call, request in (
        (stub.ListAuditEvents, pb.ListAuditEventsRequest(page_token=token)),
        (stub.VerifyAuditEvents, pb.VerifyAuditEventsRequest(page_token=token)),
    ):
        assert await refusal_of(mesh, call, request, operator_of(mesh)) is Reason.INVALID_REQUEST


async def test_ListAuditEvents__tenant_sees_its_own_alone(mesh: Mesh) -> None:
    other = another(mesh)
    await other.create_tenant()
    await mesh.spawn()
    await other.spawn()
    await recorded(mesh.peer, operator_of(mesh), "SpawnSession")
    await recorded(mesh.peer, operator_of(other), "SpawnSession")
    for one in (mesh, other):
        assert {event.tenant_id for event in await events_of(mesh.peer, operator_of(one))} == {one.tenant}
        assert {head.tenant_id for head in (await verified(mesh.peer, operator_of(one)))[2]} == {one.tenant}
    stub = AuditServiceStub(mesh.peer.channel)
    for call, request in (
        (stub.ListAuditEvents, pb.ListAuditEventsRequest(tenant_id=other.tenant)),
        (stub.VerifyAuditEvents, pb.VerifyAuditEventsRequest(tenant_id=other.tenant)),
    ):
        assert await refusal_of(mesh, call, request, operator_of(mesh)) is Reason.INVALID_REQUEST
        user = client_tokens(mesh.keys).client_token(mesh.tenant, "user", 60, role=ClientRole.USER)
        assert await refusal_of(mesh, call, request, user) is Reason.ROLE_MISSING
    of_other = await events_of(mesh.peer, admin_of(mesh), tenant_id=other.tenant)
    assert {event.tenant_id for event in of_other} == {other.tenant}


async def test_ListAuditEvents__what_an_operator_of_the_mesh_did_to_a_tenant_is_its_event(mesh: Mesh) -> None:
    event = await recorded(mesh.peer, operator_of(mesh), "CreateTenant")
    assert (event.caller_kind, event.subject) == (policy_pb2.CALLER_ADMIN, "operator")
    assert list(event.resources) == [f"tenant_id={mesh.tenant}"]


async def test_ListAuditEvents__what_a_client_did_as_an_operator_of_the_mesh_names_its_tenant(
    mesh: Mesh,
) -> None:
    token = client_tokens(mesh.keys).client_token("t-staff", "root", 600, role=ClientRole.ADMIN)
    delete = TenantServiceStub(mesh.peer.channel).DeleteTenant
    with use_token(token):
        request = tenant_pb.DeleteTenantRequest(tenant_id=mesh.tenant, request_id="r")
        await mesh.peer.unary(delete, request, timeout_seconds=60.0)
    event = await recorded(mesh.peer, admin_of(mesh), "DeleteTenant", tenant_id=mesh.tenant)
    assert (event.caller_kind, event.subject, event.token_id) == (
        policy_pb2.CALLER_ADMIN,
        "root",
        id_of(token),
    )
    assert list(event.resources) == ["client_tenant_id=t-staff", f"tenant_id={mesh.tenant}"]
    [created] = await events_of(mesh.peer, admin_of(mesh), tenant_id=mesh.tenant, method="CreateTenant")
    assert list(created.resources) == [f"tenant_id={mesh.tenant}"]


async def test_ListAuditEvents__every_service_records_its_own_calls(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    expected = {
        "attachment-blob": "StageSet",
        "transcript": "CreateTranscript",
        "hook": "PrepareTenant",
        "model-router": "PrepareTenant",
    }
    await mesh.spawn(attachments=[attachment()])
    for service, rpc in expected.items():
        async with caller_at(peers[service], service) as peer:
            event = await recorded(peer, operator_of(mesh), rpc)
            assert (event.service, event.caller_kind, event.subject) == (
                service,
                policy_pb2.CALLER_SERVICE,
                "session",
            )
            assert (await verified(peer, operator_of(mesh)))[1] == []


@pytest.mark.parametrize(
    ("attack", "defect"),
    [
        ("update {} set subject = 'nobody' where tenant_id = %s and sequence = 1", "CHANGED"),
        ("update {} set code = 'OK', reason = '' where tenant_id = %s and code <> 'OK'", "CHANGED"),
        ("delete from {} where tenant_id = %s and sequence = 1", "MISSING"),
        (
            "delete from {0} where tenant_id = %s and sequence = (select max(sequence) from {0} e"
            " where e.tenant_id = {0}.tenant_id)",
            "MISSING",
        ),
    ],
)
async def test_VerifyAuditEvents__finds_what_an_administrator_of_the_database_changed(
    mesh: Mesh, postgres: Postgres, attack: str, defect: str
) -> None:
    session = await mesh.spawn()
    unknown = session_pb.KillSessionRequest(session_id="ses_" + "0" * 26)
    await refusal_of(mesh, mesh.sessions.KillSession, unknown, operator_of(mesh))
    await kill(mesh, session.session_id)
    await recorded(mesh.peer, operator_of(mesh), "KillSession", outcome=OK)
    await recorded(mesh.peer, operator_of(mesh), "KillSession", outcome=FAILED)
    count, breaks, (head,) = await verified(mesh.peer, operator_of(mesh))
    assert (breaks, head.first_sequence, head.last_sequence) == ([], 1, count)
    assert len(head.hash) == 32
    async with as_superuser(postgres.superuser_dsn, "session") as superuser:
        statement = sql.SQL(attack).format(sql.Identifier("audit_events"))  # type: ignore[arg-type]
        assert (await superuser.execute(statement, (mesh.tenant,))).rowcount == 1
    for token in (operator_of(mesh), admin_of(mesh)):
        _, breaks, _ = await verified(mesh.peer, token, mesh.tenant if token != operator_of(mesh) else "")
        found = {event_pb.AuditDefect.Name(one.defect) for one in breaks if one.tenant_id == mesh.tenant}
        assert found == {f"AUDIT_DEFECT_{defect}"}


async def test_VerifyAuditEvents__goes_through_the_chains_of_all_tenants(mesh: Mesh) -> None:
    other = another(mesh)
    await other.create_tenant()
    await recorded(mesh.peer, operator_of(other), "CreateTenant")
    await recorded(mesh.peer, operator_of(mesh), "CreateTenant")
    _, _, heads = await verified(mesh.peer, admin_of(mesh))
    found = [head.tenant_id for head in heads]
    assert {mesh.tenant, other.tenant} <= set(found)
    assert len(found) == len(set(found))


async def test_DeleteTenant__leaves_its_events_which_a_new_tenant_of_the_name_does_not_see(
    mesh: Mesh, remains: Remains, peers: dict[str, str]
) -> None:
    session = await mesh.spawn()
    await recorded(mesh.peer, operator_of(mesh), "SpawnSession")
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    kept = await recorded(mesh.peer, admin_of(mesh), "SpawnSession", tenant_id=mesh.tenant)
    assert f"session_id={session.session_id}" in kept.resources
    await recorded(mesh.peer, admin_of(mesh), "DeleteTenant", tenant_id=mesh.tenant)
    async with caller_at(peers["hook"], "hook") as hook:
        await recorded(hook, admin_of(mesh), "PurgeTenant", tenant_id=mesh.tenant)
        await mesh.create_tenant()
        await recorded(
            hook,
            admin_of(mesh),
            "PrepareTenant",
            tenant_id=mesh.tenant,
            matching=lambda event: event.sequence > 2,
        )
        shown = {event.method.rpartition("/")[2] for event in await events_of(hook, operator_of(mesh))}
        assert shown <= {"PrepareTenant"}
    await recorded(mesh.peer, operator_of(mesh), "CreateTenant")
    shown = {event.method.rpartition("/")[2] for event in await events_of(mesh.peer, operator_of(mesh))}
    assert shown == {"CreateTenant"}
    _, breaks, heads = await verified(mesh.peer, operator_of(mesh))
    assert (breaks, len(heads)) == ([], 1)
    everything: Any = await events_of(mesh.peer, admin_of(mesh), tenant_id=mesh.tenant)
    assert "SpawnSession" in {event.method.rpartition("/")[2] for event in everything}
