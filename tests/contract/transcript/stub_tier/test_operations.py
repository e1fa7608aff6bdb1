"""Operations: their progress, repeats, cancellation and failures, on TierTranscript and
RecountTranscript."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from google.longrunning import operations_pb2
from google.longrunning.operations_pb2 import Operation
from google.longrunning.operations_pb2_grpc import OperationsStub
from google.protobuf.duration_pb2 import Duration
from spawnmesh.operations.v1 import operation_service_pb2 as pb
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.long_running import store
from spawnmesh_postgres.long_running.operation import MAX_OPEN, Progress, StoredOperation
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import shared_settings
from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import refused
from tests.support.transcript.operating import (
    call_operations,
    carry,
    idle_worker,
    metadata_of,
    response_of,
    result_of,
)
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier_sessions import APPLY, DRY_RUN, REVERT, TierSession, dropped
from tests.support.waiting import eventually

KIND = storage_pb.TierTranscriptResponse
_DUE = "update jobs set due_time = now() where tenant_id = %s and kind = 'operation'"


async def get(session: TierSession, name: str, *, token: str = "") -> Operation:
    request = pb.GetOperationRequest(name=name)
    found: Operation = await call_operations(session.session, "GetOperation", request, token=token)
    return found


async def wait(session: TierSession, name: str, seconds: int = 60) -> Operation:
    request = pb.WaitOperationRequest(name=name, timeout=Duration(seconds=seconds))
    found: Operation = await call_operations(session.session, "WaitOperation", request)
    return found


async def cancel(session: TierSession, name: str, *, token: str = "") -> None:
    request = pb.CancelOperationRequest(name=name)
    await call_operations(session.session, "CancelOperation", request, token=token)


async def listed(session: TierSession, **fields: Any) -> pb.ListOperationsResponse:
    request = pb.ListOperationsRequest(**{"name": "services/transcript", **fields})
    found: pb.ListOperationsResponse = await call_operations(session.session, "ListOperations", request)
    return found


async def row_of(session: TierSession, database: Database, name: str) -> StoredOperation:
    found = await store.find(database, session.session.tenant_id, name.rpartition("/")[2])
    assert found is not None
    return found


@pytest.fixture
async def long(tier_session: TierSession) -> TierSession:
    """A transcript of 1,201 entries, which take two steps."""
    claim = await tier_session.session.acquire(1)
    for _ in range(5):
        await tier_session.session.append([assistant("word") for _ in range(240)], claim=claim)
    return tier_session


async def test_WaitOperation__returns_the_response_and_the_counts(old: TierSession) -> None:
    started = await old.start_tier(APPLY)
    assert started.name.startswith("services/transcript/operations/opr_")
    begun = metadata_of(started)
    assert (started.done, begun.method, begun.subject) == (False, "TierTranscript", "tester")
    assert not begun.HasField("partial_response")
    asked = storage_pb.TierTranscriptRequest()
    assert begun.request.Unpack(asked)
    assert (asked.session_id, asked.action) == (old.session.session_id, APPLY)
    # A waiter is woken by the end.
    waiting = asyncio.create_task(wait(old, started.name))
    assert await carry(old.session.service) >= 1
    done = await waiting
    assert done.done
    response = response_of(done, KIND)
    assert (response.cooled_entry_count, response.examined_entry_count) == (4, 9)
    ended = metadata_of(done)
    assert (ended.done_count, ended.total_count, ended.retry_reason) == (9, 9, "")
    assert ended.HasField("end_time")
    assert done == await get(old, started.name) == await wait(old, started.name, 0)


async def test_WaitOperation__returns_an_open_operation_after_the_timeout(old: TierSession) -> None:
    started = await old.start_tier(DRY_RUN)
    assert not (await wait(old, started.name, 0)).done
    assert not (await wait(old, started.name, 1)).done


async def test_an_operation_goes_on_after_its_worker_was_lost_between_two_steps(
    long: TierSession, database: Database, superuser: Superuser
) -> None:
    """The counts of the recorded step stay, and no entry is looked at twice."""
    started = await long.start_tier(DRY_RUN)
    tenant_id = long.session.tenant_id
    # A worker was killed after it had written its first step and its claim.
    await superuser.execute(
        "update jobs set claim_id = gen_random_uuid(), attempt_count = 1,"
        " due_time = now() + interval '1 hour' where tenant_id = %s",
        (tenant_id,),
    )
    partial = storage_pb.TierTranscriptResponse(examined_entry_count=1_000)
    first = Progress(partial, position="1000", done_count=1_000, total_count=1_201)
    assert await store.advance(database, tenant_id, await row_of(long, database, started.name), first)
    halfway_operation = await get(long, started.name)
    halfway = metadata_of(halfway_operation)
    assert (halfway.done_count, halfway.total_count) == (1_000, 1_201)
    assert halfway.partial_response.Unpack(partial)
    await carry(long.session.service)
    assert await get(long, started.name) == halfway_operation, "the lost worker still has its claim"
    await superuser.execute(_DUE, (tenant_id,))
    response = await result_of(long.session, started, KIND)
    assert response.examined_entry_count == 1_201
    assert (await row_of(long, database, started.name)).step_count == 2


async def test_a_worker_that_lost_its_claim_records_no_step(
    long: TierSession, database: Database, superuser: Superuser
) -> None:
    """Two workers carry one operation at once: each entry is counted once."""
    started = await long.start_tier(DRY_RUN)
    tenant_id = long.session.tenant_id
    before = await row_of(long, database, started.name)
    await result_of(long.session, started, KIND)
    late = Progress(storage_pb.TierTranscriptResponse(examined_entry_count=7), "7", 7, 7, is_done=True)
    assert await store.advance(database, tenant_id, before, late) is None
    assert response_of(await get(long, started.name), KIND).examined_entry_count == 1_201


async def test_CancelOperation__ends_it_between_two_steps(
    long: TierSession, database: Database, superuser: Superuser
) -> None:
    started = await long.start_tier(APPLY)
    partial = storage_pb.TierTranscriptResponse(examined_entry_count=1_000)
    first = Progress(partial, "1000", 1_000, 1_201)
    row = await row_of(long, database, started.name)
    assert await store.advance(database, long.session.tenant_id, row, first)
    # The job waits for its next attempt; the cancellation makes it due.
    later = "update jobs set due_time = now() + interval '1 hour' where tenant_id = %s"
    await superuser.execute(later, (long.session.tenant_id,))
    await cancel(long, started.name)
    assert metadata_of(await get(long, started.name)).HasField("cancel_time")
    with refused(Reason.CANCELLED):
        await result_of(long.session, started, KIND)
    ended = await get(long, started.name)
    assert ended.error.code == 1
    metadata = metadata_of(ended)
    assert (metadata.done_count, metadata.HasField("end_time")) == (1_000, True)
    assert metadata.partial_response.Unpack(partial)
    await cancel(long, started.name)
    assert await get(long, started.name) == ended


async def test_TierTranscript__a_repeat_with_the_same_request_id_is_the_same_operation(
    old: TierSession,
) -> None:
    request_id = secrets.token_hex(8)
    twice = await asyncio.gather(*(old.start_tier(APPLY, request_id=request_id) for _ in range(4)))
    assert len({one.name for one in twice}) == 1
    await result_of(old.session, twice[0], KIND)
    again = await old.start_tier(APPLY, request_id=request_id)
    assert again == await get(old, twice[0].name)
    assert response_of(again, KIND).cooled_entry_count == 4
    with refused(Reason.REQUEST_ID_REUSED):
        await old.start_tier(REVERT, request_id=request_id)
    stranger = old.session.service.session()
    await stranger.create()
    other = await old.to(stranger).start_tier(DRY_RUN, request_id=request_id)
    assert other.name != again.name


async def test_GetOperation__of_another_tenant_is_not_found(old: TierSession) -> None:
    started = await old.start_tier(DRY_RUN)
    stranger = old.to(old.session.service.session())
    for name in (started.name, f"services/transcript/operations/{new_id(IdKind.OPERATION)}"):
        for call in (get, wait, cancel):
            with refused(Reason.NOT_FOUND) as facts:
                await call(stranger, name)
            assert facts["id"] == name
        with refused(Reason.NOT_FOUND):
            await call_operations(stranger.session, "DeleteOperation", pb.DeleteOperationRequest(name=name))
    assert not (await listed(stranger)).operations
    with refused(Reason.NOT_FOUND):
        await get(old, started.name.replace("transcript", "hook"))
    assert not metadata_of(await get(old, started.name)).HasField("cancel_time")


async def test_CancelOperation__needs_the_role_of_the_rpc(old: TierSession) -> None:
    started = await old.start_tier(DRY_RUN)
    minter = old.session.service.client_minter
    tokens = {
        role.name: minter.client_token(old.session.tenant_id, "someone", 300, role=role)
        for role in (ClientRole.READER, ClientRole.USER)
    }
    assert not (await get(old, started.name, token=tokens["READER"])).done
    for token in tokens.values():
        with refused(Reason.ROLE_MISSING):
            await cancel(old, started.name, token=token)


async def test_OperationService__is_served_as_googles_service_too(old: TierSession) -> None:
    started = await old.start_tier(DRY_RUN)
    await result_of(old.session, started, KIND)
    peer = old.session.service.peer
    stub: Any = OperationsStub(peer.channel)
    with use_token(old.session.client_token()):
        found = await peer.unary(
            stub.GetOperation, operations_pb2.GetOperationRequest(name=started.name), timeout_seconds=60
        )
        page = await peer.unary(
            stub.ListOperations,
            operations_pb2.ListOperationsRequest(name="services/transcript", filter="done = true"),
            timeout_seconds=60,
        )
        waited = await peer.unary(
            stub.WaitOperation,
            operations_pb2.WaitOperationRequest(name=started.name, timeout=Duration(seconds=1)),
            timeout_seconds=60,
        )
        for call, kind in (("CancelOperation", "Cancel"), ("DeleteOperation", "Delete")):
            request = getattr(operations_pb2, f"{kind}OperationRequest")(name=started.name)
            await peer.unary(getattr(stub, call), request, timeout_seconds=60)
        with refused(Reason.INVALID_REQUEST):
            await peer.unary(
                stub.GetOperation, operations_pb2.GetOperationRequest(name="x"), timeout_seconds=60
            )
    assert found == waited == page.operations[0]
    assert response_of(found, KIND).cooled_entry_count == 4
    with refused(Reason.NOT_FOUND):
        await get(old, started.name)
    with refused(Reason.TOKEN_MISSING), use_token(""):
        await peer.unary(stub.GetOperation, operations_pb2.GetOperationRequest(name=started.name))


async def test_ListOperations__pages_newest_first(old: TierSession) -> None:
    names = [(await old.start_tier(DRY_RUN)).name for _ in range(3)]
    first = await result_of(old.session, await get(old, names[0]), KIND)
    assert first.cooled_entry_count == 4
    page = await listed(old, page_size=2)
    rest = await listed(old, page_size=2, page_token=page.next_page_token)
    assert [one.name for one in (*page.operations, *rest.operations)] == sorted(names, reverse=True)
    assert not rest.next_page_token
    done = [one.name for one in (await listed(old, filter="done = true")).operations]
    left = [one.name for one in (await listed(old, filter="done = false")).operations]
    assert names[0] in done
    assert sorted(done + left) == sorted(names)
    for wrong in ({"page_token": page.next_page_token, "filter": "done = true"}, {"page_token": "x"}):
        with refused(Reason.INVALID_REQUEST):
            await listed(old, **wrong)
    with refused(Reason.INVALID_REQUEST):
        await listed(old, filter="done")
    with refused(Reason.NOT_FOUND):
        await listed(old, name="services/session")


async def test_DeleteOperation__forgets_one_that_is_done(old: TierSession) -> None:
    request_id = secrets.token_hex(8)
    started = await old.start_tier(DRY_RUN, request_id=request_id)
    request = pb.DeleteOperationRequest(name=started.name)
    with refused(Reason.CONFLICT):
        await call_operations(old.session, "DeleteOperation", request)
    await result_of(old.session, started, KIND)
    await call_operations(old.session, "DeleteOperation", request)
    with refused(Reason.NOT_FOUND):
        await get(old, started.name)
    assert (await old.start_tier(DRY_RUN, request_id=request_id)).name != started.name


async def test_an_operation_is_deleted_some_days_after_its_end(
    old: TierSession, superuser: Superuser
) -> None:
    started = await old.start_tier(DRY_RUN)
    await result_of(old.session, started, KIND)

    async def is_kept_for_a_week() -> bool:
        rows = await superuser.execute(
            "select due_time > now() + interval '6 days' from jobs where tenant_id = %s",
            (old.session.tenant_id,),
        )
        return await rows.fetchall() == [(True,)]

    await eventually(is_kept_for_a_week)
    await superuser.execute(_DUE, (old.session.tenant_id,))
    await carry(old.session.service)
    with refused(Reason.NOT_FOUND):
        await get(old, started.name)
    rows = await superuser.execute("select from jobs where tenant_id = %s", (old.session.tenant_id,))
    assert not await rows.fetchall()


async def test_TierTranscript__open_operations_are_limited(old: TierSession, superuser: Superuser) -> None:
    await superuser.execute(
        "insert into operations (tenant_id, operation_id, method, request_id, request, subject)"
        " select %s, 'opr_0' || lpad(n::text, 25, '0'), 'TierTranscript', 'r' || n, '', ''"
        " from generate_series(1, %s) n",
        (old.session.tenant_id, MAX_OPEN - 1),
    )
    last = await old.start_tier(DRY_RUN, request_id="last")
    with refused(Reason.OPERATION_COUNT_EXCEEDED) as facts:
        await old.start_tier(DRY_RUN)
    assert facts["max_operation_count"] == str(MAX_OPEN)
    assert (await old.start_tier(DRY_RUN, request_id="last")).name == last.name
    await result_of(old.session, last, KIND)
    await old.start_tier(DRY_RUN)


async def test_an_operation_waits_for_what_is_unavailable_and_then_goes_on(
    old: TierSession, superuser: Superuser, keys: Path
) -> None:
    started = await old.start_tier(APPLY)
    service = old.session.service
    settings = TranscriptSettings(**shared_settings("transcript", keys), database_url=service.dsn.app)
    async with idle_worker(settings) as without_blobs:
        assert await without_blobs.run_due(store.JOB_KIND) >= 1
    waiting = await get(old, started.name)
    assert (waiting.done, metadata_of(waiting).retry_reason) == (False, "DEPENDENCY_UNAVAILABLE")
    await superuser.execute(_DUE, (old.session.tenant_id,))
    assert (await result_of(old.session, started, KIND)).cooled_entry_count == 4
    assert metadata_of(await get(old, started.name)).retry_reason == ""


async def test_an_operation_fails_for_good(old: TierSession, superuser: Superuser) -> None:
    refused_one = await old.start_tier(APPLY)
    await old.set_tier(4, is_on=False)
    with refused(Reason.TIER_DISABLED):
        await result_of(old.session, refused_one, KIND)
    lost = await old.start_tier(DRY_RUN)
    worn = "update jobs set attempt_count = 20 where tenant_id = %s and key = %s"
    await superuser.execute(worn, (old.session.tenant_id, lost.name.rpartition("/")[2]))
    with refused(Reason.INTERNAL):
        await result_of(old.session, lost, KIND)
    assert await dropped(superuser, old) == {}
    with refused(Reason.TIER_DISABLED):
        await old.start_tier(APPLY)
