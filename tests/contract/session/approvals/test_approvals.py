"""Approvals: a run waits for a person without a runner, and goes on with what was decided."""

import asyncio
import hashlib
import json
from datetime import UTC, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as service_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.session.approvals import (
    QUEUED,
    WAITING,
    approve,
    ask,
    call_key,
    decide,
    deny,
    get,
    listed,
    take,
    transfer,
    waiting_run,
)
from tests.support.session.calls import fail, kill
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.interrupts import beat, refusal_of
from tests.support.session.tables import superuser

SECRET = "sk-proj-" + "Ab3" * 12 + "T3BlbkFJ" + "Ab3" * 12


async def test_RequestApproval__the_run_waits_without_a_lease_and_goes_on_after_the_decision(
    mesh: Mesh,
) -> None:
    held, key, approval = await waiting_run(mesh, reason="more than 4")
    assert approval.state == pb.APPROVAL_STATE_PENDING
    frozen = approval.tool_call
    assert (frozen.tool_name, frozen.arguments_json) == ("mcp__bank__pay", '{"to": "Ada", "amount": 5}')
    assert frozen.arguments_sha256 == hashlib.sha256(frozen.arguments_json.encode()).hexdigest()
    assert (approval.reason, approval.agent_id) == ("more than 4", held.session.agent_id)
    waiting = (await mesh.get(held.session.session_id)).latest_run
    assert (waiting.state, waiting.approval_id) == (WAITING, approval.approval_id)
    assert await refusal_of(beat(mesh, held)) is Reason.RUN_LEASE_LOST
    claimed = [one.run.run_id for one in await mesh.claim_any(wait_seconds=0.5, limit=64)]
    assert held.run.run_id not in claimed, "no runner gets it"

    decided = await approve(mesh, approval.approval_id)
    assert (decided.approval.state, decided.approval.decided_by) == (pb.APPROVAL_STATE_APPROVED, "ada")
    assert decided.approval.HasField("decide_time")
    assert (decided.run.state, decided.run.approval_id) == (QUEUED, "")
    again = await mesh.claim(held.session.session_id)
    assert (again.run.run_id, again.run.attempt_count) == (held.run.run_id, held.run.attempt_count)
    assert (held.approval_count, again.approval_count) == (0, 1)
    taken = await take(mesh, again, key)
    assert (taken.approval.state, taken.was_begun) == (pb.APPROVAL_STATE_APPROVED, False)
    assert (taken.approval.tool_call, taken.approval.edited_arguments_json) == (frozen, "")


async def test_RequestApproval__a_repeat_returns_the_same_approval(mesh: Mesh) -> None:
    held, key, approval = await waiting_run(mesh)
    again = await ask(mesh, held, key)
    assert again.approval == approval
    assert again.run.state == WAITING
    assert [one.approval_id for one in await listed(mesh)] == [approval.approval_id]
    # Another call of the same run has to wait for its turn.
    assert await refusal_of(ask(mesh, held, call_key())) is Reason.RUN_LEASE_LOST


async def test_RequestApproval__a_decided_call_is_not_asked_for_again(mesh: Mesh) -> None:
    held, key, approval = await waiting_run(mesh)
    await deny(mesh, approval.approval_id)
    again = await mesh.claim(held.session.session_id)
    assert await refusal_of(ask(mesh, again, key)) is Reason.RUN_STATE
    second = await ask(mesh, again, call_key())
    assert second.run.state == WAITING, "another call can be"
    assert second.approval.approval_id != approval.approval_id


async def test_RequestApproval__the_wait_moves_the_deadline(mesh: Mesh, postgres: Any) -> None:
    held, _, approval = await waiting_run(mesh, spawn={"run_timeout": Duration(seconds=60)})
    async with superuser(postgres) as link:
        earlier = approval.create_time.ToDatetime(UTC) - timedelta(seconds=60)
        await link.execute(
            "update session.runs set wait_time = %s where tenant_id = %s and run_id = %s",
            (earlier, mesh.tenant, approval.run_id),
        )
    await approve(mesh, approval.approval_id)
    again = await mesh.claim(held.session.session_id)
    assert again.time_left.ToTimedelta() > timedelta(seconds=60)
    assert again.deadline_time.ToDatetime() - held.deadline_time.ToDatetime() >= timedelta(seconds=60)


async def test_TakeDecision__an_approved_call_is_begun_once(mesh: Mesh) -> None:
    held, key, approval = await waiting_run(mesh)
    await approve(mesh, approval.approval_id)
    second = await mesh.claim(held.session.session_id)
    assert not (await take(mesh, second, key)).was_begun
    assert not (await take(mesh, second, key)).was_begun, "a repeat of the same runner"
    await mesh.run(second, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=second.run.epoch))
    third = await mesh.claim(held.session.session_id)
    taken = await take(mesh, third, key)
    assert taken.was_begun, "the runner before may have made the call"
    assert taken.approval.HasField("begin_time")
    assert await refusal_of(take(mesh, second, key)) is Reason.RUN_LEASE_LOST


async def test_TakeDecision__a_call_without_an_approval_has_no_decision(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert not (await take(mesh, held, call_key())).HasField("approval")


async def test_DecideApproval__edited_arguments_are_what_runs(mesh: Mesh) -> None:
    held, key, approval = await waiting_run(mesh)
    edited = '{"to": "Ada", "amount": 4}'
    await approve(mesh, approval.approval_id, arguments_json=edited)
    taken = await take(mesh, await mesh.claim(held.session.session_id), key)
    assert taken.approval.edited_arguments_json == edited
    assert taken.approval.tool_call == approval.tool_call, "what was asked for stays"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        ('{"amount": 4}', "lacks to"),
        ('{"to": "Ada", "amount": "4"}', "does not fit type"),
        ('{"to": "Ada", "more": 1}', "there is no such argument"),
        ('{"to": "Ada", "to": "Bob"}', "has a key twice"),
        ('{"to": "Ada", "amount": Infinity}', "is not JSON"),
        ('{"to":' + "[" * 20000 + "]" * 20000 + "}", ""),
    ],
)
async def test_DecideApproval__edited_arguments_that_do_not_fit_change_nothing(
    mesh: Mesh, arguments: str, problem: str
) -> None:
    held, _, approval = await waiting_run(mesh)
    with pytest.raises(MeshError) as caught:
        await approve(mesh, approval.approval_id, arguments_json=arguments)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert problem in str(caught.value.violations)
    assert await get(mesh, approval.approval_id) == approval
    assert (await mesh.get(held.session.session_id)).latest_run.state == WAITING


@pytest.mark.parametrize("schema", ['{"type": "array"}', '{"type": 4}', "[]", "{"])
async def test_DecideApproval__without_a_readable_schema_no_arguments_can_be_edited(
    mesh: Mesh, schema: str
) -> None:
    call = pb.ToolCallSubject(tool_name="t", arguments_json="{}", parameters_json=schema)
    _, _, approval = await waiting_run(mesh, tool_call=call)
    edited = approve(mesh, approval.approval_id, arguments_json='{"a": 1}')
    assert await refusal_of(edited) is Reason.INVALID_REQUEST
    assert (await approve(mesh, approval.approval_id)).run.state == QUEUED


async def test_DecideApproval__arguments_that_take_long_to_check_hold_up_no_other_call(mesh: Mesh) -> None:
    """They are checked in another process, which is ended."""
    schema = '{"type": "object", "properties": {"a": {"uniqueItems": true}}}'
    call = pb.ToolCallSubject(tool_name="t", arguments_json="{}", parameters_json=schema)
    _, _, approval = await waiting_run(mesh, tool_call=call)
    nested = json.dumps({"a": [{"b": {"c": {"d": [number]}}} for number in range(1800)]})
    edited = asyncio.create_task(outcome_of(approve(mesh, approval.approval_id, arguments_json=nested)))
    answered_count = 0
    while not edited.done():
        await get(mesh, approval.approval_id)
        answered_count += 1
    assert (await edited) in (None, Reason.PROCESSING_TIME_EXCEEDED)
    assert answered_count > 3  # Were it checked here, the first call would be answered behind it.


async def outcome_of(call: Any) -> Reason | None:
    try:
        await call
    except MeshError as error:
        return error.reason
    return None


async def test_RequestApproval__runs_that_wait_for_people_are_limited(mesh: Mesh) -> None:
    settings = TenantSettings()
    settings.max_queued_run_count = 2
    mesh.tenant = f"{mesh.tenant}-two"
    await mesh.create_tenant(settings=settings)
    _, _, first = await waiting_run(mesh)
    await waiting_run(mesh)
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert await refusal_of(ask(mesh, held, call_key())) is Reason.RUN_QUEUE_FULL
    await beat(mesh, held)  # The run is still held.
    await deny(mesh, first.approval_id)
    assert (await ask(mesh, held, call_key())).run.state == WAITING


@pytest.mark.parametrize("entry", ["ent_" + "_" * 26, "ent_\x1b[2J" + "a" * 22, "ent_" + "A" * 26])
async def test_RequestApproval__names_a_call_by_a_well_formed_entry(mesh: Mesh, entry: str) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert await refusal_of(ask(mesh, held, pb.CallKey(answer_entry_id=entry))) is Reason.INVALID_REQUEST


async def test_DecideApproval__decides_once_and_a_repeat_is_the_same(mesh: Mesh) -> None:
    _, _, approval = await waiting_run(mesh)
    first = await deny(mesh, approval.approval_id, "too much")
    again = await deny(mesh, approval.approval_id, "too much")
    assert again.approval == first.approval
    for other in (
        approve(mesh, approval.approval_id),
        deny(mesh, approval.approval_id, "another reason"),
        deny(mesh, approval.approval_id, "too much", by="bob"),
    ):
        with pytest.raises(MeshError) as caught:
            await other
        assert caught.value.reason is Reason.APPROVAL_CLOSED
        assert caught.value.facts["state"] == "DENIED"
        assert caught.value.facts["decided_by"] == "ada"
    assert await get(mesh, approval.approval_id) == first.approval


async def test_DecideApproval__a_question_has_an_answer_among_its_choices(mesh: Mesh) -> None:
    question = pb.Question(text="Which colour?", choices=["red", "green"])
    held, key, approval = await waiting_run(mesh, question=question)
    assert approval.question == question
    for wrong in (
        {"approve": service_pb.Approve()},
        {"answer": service_pb.Answer(text="blue")},
    ):
        assert await refusal_of(decide(mesh, approval.approval_id, **wrong)) is Reason.INVALID_REQUEST
    await decide(mesh, approval.approval_id, answer=service_pb.Answer(text="green"))
    taken = await take(mesh, await mesh.claim(held.session.session_id), key)
    assert (taken.approval.state, taken.approval.text) == (pb.APPROVAL_STATE_ANSWERED, "green")


async def test_DecideApproval__a_tool_call_has_no_answer(mesh: Mesh) -> None:
    _, _, approval = await waiting_run(mesh)
    answer = decide(mesh, approval.approval_id, answer=service_pb.Answer(text="yes"))
    assert await refusal_of(answer) is Reason.INVALID_REQUEST
    assert await get(mesh, approval.approval_id) == approval


async def test_DecideApproval__a_run_cannot_decide_for_itself(mesh: Mesh) -> None:
    other = await mesh.claim((await mesh.spawn()).session_id)
    _, _, approval = await waiting_run(mesh)
    request = service_pb.DecideApprovalRequest(approval_id=approval.approval_id, approve=service_pb.Approve())
    call = ApprovalServiceStub(mesh.peer.channel).DecideApproval
    assert await refusal_of(mesh.run(other, call, request)) is Reason.CALLER_NOT_ALLOWED


async def test_GetApproval__other_tenants_have_no_such_approval(mesh: Mesh, open_mesh: OpenMesh) -> None:
    _, _, approval = await waiting_run(mesh)
    async with open_mesh() as other:
        for call in (
            get(other, approval.approval_id),
            approve(other, approval.approval_id),
            get(mesh, new_id(IdKind.APPROVAL)),
        ):
            assert await refusal_of(call) is Reason.NOT_FOUND
        assert await listed(other) == []


async def test_RequestApproval__a_masking_tenant_keeps_no_secret(mesh: Mesh) -> None:
    settings = TenantSettings()
    settings.transcripts.mask_secrets = True
    mesh.tenant = f"{mesh.tenant}-masks"
    await mesh.create_tenant(settings=settings)
    held = await mesh.claim((await mesh.spawn()).session_id)
    call = ask(mesh, held, call_key(), tool_call=transfer('{"to": "' + SECRET + '"}'))
    assert await refusal_of(call) is Reason.SECRET_NOT_KEPT
    await beat(mesh, held)  # The run is still held.
    asked = await ask(mesh, held, call_key(), reason=f"uses {SECRET}")
    assert SECRET not in asked.approval.reason
    edited = approve(mesh, asked.approval.approval_id, arguments_json='{"to": "' + SECRET + '"}')
    assert await refusal_of(edited) is Reason.SECRET_NOT_KEPT
    denied = await deny(mesh, asked.approval.approval_id, f"{SECRET} is a key")
    assert SECRET not in denied.approval.text


@pytest.mark.parametrize(
    "tool_call",
    [
        transfer("[]"),
        transfer("nothing"),
        transfer('{"to": "Ada", "to": "Bob"}'),
        transfer('{"amount": NaN}'),
    ],
)
async def test_RequestApproval__unreadable_calls_are_refused_and_the_run_is_held(
    mesh: Mesh, tool_call: pb.ToolCallSubject
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert await refusal_of(ask(mesh, held, call_key(), tool_call=tool_call)) is Reason.INVALID_REQUEST
    await beat(mesh, held)
    assert await listed(mesh) == []


async def test_ListApprovals__filters_and_pages(mesh: Mesh) -> None:
    parent = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.claim((await mesh.spawn_as(parent)).session_id)
    first = (await ask(mesh, child, call_key())).approval
    question = (await ask(mesh, parent, call_key(), question=pb.Question(text="Why?"))).approval
    _, _, other = await waiting_run(mesh)
    await deny(mesh, other.approval_id)
    everything = {one.approval_id for one in await listed(mesh, page_size=1)}
    assert everything == {first.approval_id, question.approval_id, other.approval_id}

    async def ids(**fields: Any) -> set[str]:
        return {one.approval_id for one in await listed(mesh, **fields)}

    pending = {first.approval_id, question.approval_id}
    assert await ids(state=pb.APPROVAL_STATE_PENDING) == pending
    assert await ids(state=pb.APPROVAL_STATE_PENDING, page_size=1) == pending
    assert await ids(state=pb.APPROVAL_STATE_DENIED) == {other.approval_id}
    assert await ids(session_id=child.session.session_id) == {first.approval_id}
    assert await ids(session_id=parent.session.session_id) == pending, "with its descendants"
    assert await ids(tool_name="mcp__bank__pay", state=pb.APPROVAL_STATE_PENDING) == {first.approval_id}
    assert await ids(agent_id="nobody") == set()


async def test_DecideApproval__the_end_of_a_run_withdraws_the_approval(mesh: Mesh) -> None:
    held, _, approval = await waiting_run(mesh)
    await kill(mesh, held.session.session_id)
    assert (await get(mesh, approval.approval_id)).state == pb.APPROVAL_STATE_WITHDRAWN
    run = (await mesh.get(held.session.session_id)).latest_run
    assert (run.state, run.approval_id) == (session_pb2.RUN_STATE_KILLED, "")
    assert await refusal_of(approve(mesh, approval.approval_id)) is Reason.APPROVAL_CLOSED
    assert await refusal_of(fail(mesh, held)) is Reason.RUN_STATE
