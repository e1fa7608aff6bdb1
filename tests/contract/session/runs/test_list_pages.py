"""The inbox, the jobs and the audit log of the session service come in pages."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from spawnmesh.audit.v1 import audit_service_pb2 as audit_pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceStub
from spawnmesh.jobs.v1 import job_service_pb2 as job_pb
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceStub
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_runtime.impersonation import use_token

from tests.support.list_pages import PagedList, check_page_sizes, check_page_tokens, check_pages
from tests.support.session.auditing import admin_of, events_of, operator_of
from tests.support.session.calls import another, send
from tests.support.session.harness import Mesh
from tests.support.session.tables import superuser
from tests.support.waiting import eventually

_INSERT_JOBS = """
insert into session.jobs (tenant_id, kind, key, dead_time)
select %(tenant)s, kind, key, now() from unnest(array['release_attachments', 'delete_session']) kind,
    unnest(array['ses_a', 'ses_b', 'ses_c']) key
"""
SPAWNED = audit_pb.ListAuditEventsRequest(method="SpawnSession")


async def as_caller(mesh: Mesh, token: str, method: Any, request: Any) -> Any:
    with use_token(token):
        return await mesh.peer.unary(method, request, timeout_seconds=60.0)


async def _other_tenant(mesh: Mesh) -> Mesh:
    other = another(mesh)
    await other.create_tenant()
    return other


async def _held_with_messages(mesh: Mesh) -> run_pb.ClaimedRun:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    for number in range(4):
        await send(mesh, held.session.session_id, f"message {number}")
    return held


def _events_as_operator(mesh: Mesh) -> Callable[[Any], Awaitable[Any]]:
    stub = AuditServiceStub(mesh.peer.channel)
    return partial(as_caller, mesh, operator_of(mesh), stub.ListAuditEvents)


def _verification_as_operator(mesh: Mesh) -> Callable[[Any], Awaitable[Any]]:
    stub = AuditServiceStub(mesh.peer.channel)
    return partial(as_caller, mesh, operator_of(mesh), stub.VerifyAuditEvents)


async def _spawn_and_wait_for_events(mesh: Mesh) -> None:
    for _ in range(3):
        await mesh.spawn()

    async def are_recorded() -> bool:
        return len(await events_of(mesh.peer, operator_of(mesh), method="SpawnSession")) >= 3

    await eventually(are_recorded)


async def _inbox(mesh: Mesh, _postgres: Any) -> PagedList:
    other = await _other_tenant(mesh)
    held, beside = await _held_with_messages(mesh), await _held_with_messages(mesh)
    foreign = await _held_with_messages(other)
    await _spawn_and_wait_for_events(other)
    return PagedList(
        partial(mesh.run, held, mesh.runs.ListInbox),
        run_pb.ListInboxRequest(),
        "messages",
        [
            (partial(mesh.run, beside, mesh.runs.ListInbox), run_pb.ListInboxRequest()),
            (partial(other.run, foreign, other.runs.ListInbox), run_pb.ListInboxRequest()),
            (_events_as_operator(other), audit_pb.ListAuditEventsRequest()),
        ],
        add=lambda: send(mesh, held.session.session_id, "another"),
    )


async def _jobs(mesh: Mesh, postgres: Any) -> PagedList:
    other = another(mesh)
    async with superuser(postgres) as link:
        for tenant in (mesh.tenant, other.tenant):
            await link.execute(_INSERT_JOBS, {"tenant": tenant})
    call = partial(as_caller, mesh, admin_of(mesh), JobServiceStub(mesh.peer.channel).ListJobs)
    return PagedList(
        call,
        job_pb.ListJobsRequest(tenant_id=mesh.tenant),
        "jobs",
        [
            (call, job_pb.ListJobsRequest(tenant_id=other.tenant)),
            (call, job_pb.ListJobsRequest(tenant_id=mesh.tenant, kind="delete_session")),
            (call, job_pb.ListJobsRequest(tenant_id=mesh.tenant, dead=True)),
        ],
    )


async def _events(mesh: Mesh, _postgres: Any) -> PagedList:
    other = await _other_tenant(mesh)
    await _spawn_and_wait_for_events(mesh)
    await _spawn_and_wait_for_events(other)
    return PagedList(
        _events_as_operator(mesh),
        SPAWNED,
        "events",
        [
            (_events_as_operator(other), SPAWNED),
            (_events_as_operator(mesh), audit_pb.ListAuditEventsRequest()),
            (_verification_as_operator(mesh), audit_pb.VerifyAuditEventsRequest()),
        ],
    )


LISTS = {"ListInbox": _inbox, "ListJobs": _jobs, "ListAuditEvents": _events}


@pytest.fixture(params=LISTS)
async def listed(mesh: Mesh, postgres: Any, request: pytest.FixtureRequest) -> PagedList:
    own = await _other_tenant(mesh)
    return await LISTS[request.param](own, postgres)


@pytest.mark.parametrize("check", [check_pages, check_page_sizes, check_page_tokens])
async def test_list_comes_in_pages(listed: PagedList, check: Callable[[PagedList], Awaitable[None]]) -> None:
    await check(listed)


async def test_ListInbox__acknowledged_messages_change_no_other_page(mesh: Mesh) -> None:
    held = await _held_with_messages(mesh)
    listing = partial(mesh.run, held, mesh.runs.ListInbox)
    first = await listing(run_pb.ListInboxRequest(page_size=2))
    taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=[first.messages[0].key])
    await mesh.run(held, mesh.runs.AcknowledgeInbox, taken)
    second = await listing(run_pb.ListInboxRequest(page_size=2, page_token=first.next_page_token))
    assert [message.text for message in second.messages] == ["message 2", "message 3"]
    anew = await listing(run_pb.ListInboxRequest(page_size=2))
    assert [message.text for message in anew.messages] == ["message 1", "message 2"]


async def test_VerifyAuditEvents__small_pages_check_the_same_events(mesh: Mesh) -> None:
    own, other = await _other_tenant(mesh), await _other_tenant(mesh)
    await _spawn_and_wait_for_events(own)
    await _spawn_and_wait_for_events(other)
    verifying = _verification_as_operator(own)
    whole = await verifying(audit_pb.VerifyAuditEventsRequest())
    assert (whole.next_page_token, len(whole.heads)) == ("", 1)
    count, heads, token = 0, [], ""
    while True:
        page = await verifying(audit_pb.VerifyAuditEventsRequest(page_size=2, page_token=token))
        assert page.event_count <= 2
        assert list(page.breaks) == []
        count += page.event_count
        heads += page.heads
        token = page.next_page_token
        if not token:
            break
    assert (count, heads) == (whole.event_count, list(whole.heads))
    listed = PagedList(
        verifying,
        audit_pb.VerifyAuditEventsRequest(),
        "heads",
        [
            (_verification_as_operator(other), audit_pb.VerifyAuditEventsRequest()),
            (verifying, audit_pb.VerifyAuditEventsRequest(tenant_id=own.tenant)),
            (_events_as_operator(own), audit_pb.ListAuditEventsRequest()),
        ],
    )
    await check_page_sizes(listed)
    await check_page_tokens(listed)
