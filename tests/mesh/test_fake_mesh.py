"""The mesh in memory behaves as the real one: the same scenario, the same records of it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from spawnmesh_client import (
    Agent,
    Approval,
    ApprovalPolicy,
    Conflict,
    Mesh,
    RunFailed,
    RunNotDone,
    Session,
    SessionMode,
)
from spawnmesh_client.testing import FakeMesh
from spawnmesh_core.ids import IdKind, new_id

from tests.support.mesh.both_meshes import Record, real, refused, said, tenant
from tests.support.waiting import eventually

__all__ = ["real", "tenant"]


async def one_run(mesh: Mesh, _: Path) -> Record:
    session = await mesh.spawn("Say hello.", label="first", run_timeout=600)
    assert session.latest_run is not None
    seen: Record = [session.label, session.agent_id, session.mode, session.state, session.latest_run.state]
    result = await session.result(timeout=60)
    seen += [result.text, result.run.run_id == session.latest_run.run_id, result.run.state]
    events = [event async for event in session.events()]
    seen += [(event.number, event.kind, event.run_state) for event in events]
    seen += [event.number async for event in mesh.events(session.session_id, after=3)]
    entries = [entry async for entry in session.transcript()]
    seen += [(entry.seq, entry.kind, entry.role, entry.text) for entry in entries]
    ended = await session.refresh()
    seen += [ended.state, ended.end_time is not None, ended.depth, ended.archive_time]
    seen += [(hit.seq, hit.session_id == session.session_id) for hit in await session.search("rules")]
    seen += [await refused(session.send("More."))]
    return seen


async def conversation(mesh: Mesh, _: Path) -> Record:
    session = await mesh.spawn("Say hello.", mode=SessionMode.SESSION)
    seen: Record = [(await session.result(timeout=60)).text, (await session.refresh()).state]
    first = await session.send("And again.", request_id="m")
    seen += [(await session.result(timeout=60)).text]
    same = await session.send("And again.", request_id="m")
    seen += [first.run_id == same.run_id, await refused(session.send("Other.", request_id="m"))]
    seen += [await session.kill(), await session.kill(), (await session.refresh()).state]
    seen += [(event.kind, event.run_state) async for event in session.events()]
    seen += [await session.archive(), await session.archive()]
    seen += [len([one async for one in mesh.sessions()])]
    seen += [len([one async for one in mesh.sessions(include_archived=True)])]
    deleted = await session.delete()
    seen += [(deleted.deleted_session_count, deleted.killed_run_count), await refused(session.refresh())]
    return seen


async def listed(mesh: Mesh, _: Path) -> Record:
    first = await mesh.spawn("Say hello.", label="one", metadata={"ticket": "17", "team": "a b"})
    await first.result(timeout=60)
    second = await mesh.spawn("Say hello.", label="two", metadata={"ticket": "18"})
    await second.result(timeout=60)
    seen: Record = []
    for text in (
        "",
        "metadata.ticket = 17",
        'metadata.team = "a b" AND state = CLOSED',
        "run_state = QUEUED",
        "agent_id = default AND label = two",
        f"parent_session_id = {first.session_id}",
    ):
        seen += [[(one.label, dict(one.metadata)) async for one in mesh.sessions(text)]]
    for with_results in (False, True):
        found = [one async for one in mesh.sessions("label = one", with_results=with_results)]
        seen += [[one.latest_run and one.latest_run.result_text for one in found]]
    return seen


async def versions(mesh: Mesh, _: Path) -> Record:
    first = await mesh.agents.put(Agent("clerk", system_prompt="Be brief."))
    same = await mesh.agents.put(first)
    second = await mesh.agents.put(replace(first, system_prompt="Be kind."))
    seen: Record = [first.version, same.version, second.version, first.etag != second.etag]
    with pytest.raises(Conflict) as stale:
        await mesh.agents.put(replace(first, system_prompt="Be quick."))
    with pytest.raises(Conflict):
        await mesh.agents.delete("clerk", etag=first.etag)
    seen += [stale.value.reason, stale.value.facts["etag"] == second.etag, stale.value.message]
    seen += [(await mesh.spawn("Say hello.", agent="clerk")).agent_version]
    changed = await mesh.agents.update(replace(second, models=("a/b",), system_prompt=""), ["models"])
    seen += [changed.version, changed.system_prompt == second.system_prompt, changed.models]
    seen += [(await mesh.agents.update(Agent("clerk", max_turn_count=7))).models]
    for one, fields in ((Agent("nobody"), ["models"]), (changed, ["models"]), (Agent("clerk"), ["version"])):
        seen += [await refused(mesh.agents.update(replace(one, models=("c",)), fields))]
    await mesh.agents.delete("clerk", etag=(await mesh.agents.get("clerk")).etag)
    return [*seen, await refused(mesh.agents.get("clerk"))]


async def repeats(mesh: Mesh, _: Path) -> Record:
    first = await mesh.spawn("Say hello.", request_id="r")
    same = await mesh.spawn("Say hello.", request_id="r")
    seen: Record = [first.session_id == same.session_id]
    seen += [await refused(mesh.spawn("Say more.", request_id="r"))]
    return seen


async def killed(mesh: Mesh, _: Path) -> Record:
    """Kill a run that no runner claims."""
    session = await mesh.spawn("Wait.", runtime="EXTERNAL")
    seen: Record = []
    with pytest.raises(RunNotDone):
        await session.result(timeout=0.2)
    seen += [await refused(session.archive()), await session.kill()]
    with pytest.raises(RunFailed) as failed:
        await session.result(timeout=60)
    seen += [failed.value.reason, failed.value.message, failed.value.state, bool(failed.value.trace_id)]
    seen += [(event.kind, event.run_state) async for event in session.events()][-2:]
    return seen


async def interrupted(mesh: Mesh, _: Path) -> Record:
    """Interrupt runs that no runner claims."""
    session = await mesh.spawn("Wait.", runtime="EXTERNAL", mode="SESSION")
    run = await session.interrupt()
    assert run is not None
    seen: Record = [run.state, run.interrupt_time is not None, run.error_reason, run.error_message]
    with pytest.raises(RunFailed) as failed:
        await session.result(timeout=60)
    seen += [failed.value.reason, failed.value.state, (await session.refresh()).state]
    same = await session.interrupt()
    seen += [same == run, await refused(session.interrupt("More.", run_id=run.run_id))]
    later = await session.interrupt("More.", request_id="m")
    assert later is not None
    seen += [
        later.run_id == run.run_id,
        later.interrupt_time,
        await session.interrupt(run_id=run.run_id) == run,
    ]
    seen += [(await session.send("More.", request_id="m")).run_id == later.run_id]
    seen += [await refused(session.interrupt("Other.", request_id="m"))]
    seen += [await refused(session.interrupt(run_id=new_id(IdKind.RUN)))]
    seen += [await refused(session.interrupt(" ")), await session.kill()]
    seen += [await refused(session.interrupt("More."))]
    seen += [(event.kind, event.run_state) async for event in session.events()][-2:]
    return seen


async def refusals(mesh: Mesh, _: Path) -> Record:
    seen = [
        await refused(mesh.spawn(" ")),
        await refused(mesh.spawn("x", label="x" * 257)),
        await refused(mesh.spawn("x", run_timeout=0)),
        await refused(mesh.spawn("x", agent="nobody")),
        await refused(mesh.spawn("x", context="FORK")),
        await refused(mesh.spawn("x", parent=new_id(IdKind.SESSION))),
        await refused(mesh.session("ses_1")),
        await refused(mesh.session(new_id(IdKind.SESSION))),
        await refused(mesh.agents.get("nobody")),
        await refused(mesh.agents.put(Agent("No Body"))),
    ]
    closed = await mesh.spawn("Say hello.")
    await closed.result(timeout=60)
    seen += [await refused(mesh.spawn("x", parent=closed))]
    return seen


async def agents(mesh: Mesh, _: Path) -> Record:
    clerk = Agent("clerk", system_prompt="You sum up.", tools=("read_file",), max_turn_count=3)
    found = [await mesh.agents.put(clerk), await mesh.agents.get("clerk")]
    seen: Record = [replace(one, etag="") for one in found]
    seen += [[one.agent_id for one in await mesh.agents.list()]]
    await mesh.agents.delete("clerk")
    await mesh.agents.delete("clerk")
    return [*seen, [one.agent_id for one in await mesh.agents.list()]]


CALL = {"path": "a.txt", "content": "hello"}
QUESTION, CHOICES = "Which colour?", ["red", "blue"]


async def asked(mesh: Mesh, session: Session) -> Approval:
    async def pending() -> list[Approval]:
        found = mesh.approvals.list(state="PENDING", session_id=session.session_id)
        return [one async for one in found]

    (approval,) = await eventually(pending)
    return approval


async def approvals(mesh: Mesh, _: Path) -> Record:
    prompt = "You are the caller. Make the call that you are given, and say what came of it."
    policy = ApprovalPolicy(tools=("write_*",))
    clerk = Agent("clerk", system_prompt=prompt, tools=("write_file", "ask_user"), approval=policy)
    seen: Record = [(await mesh.agents.put(clerk)).approval]
    decide = mesh.approvals

    session = await mesh.spawn(f"write_file {json.dumps(CALL)}", agent="clerk")
    call = await asked(mesh, session)
    assert call.tool_call is not None
    assert call.expire_time is not None
    assert call.create_time is not None
    seen += [call.agent_id, call.state, call.reason, call.on_expiry, call.decided_by, call.question]
    seen += [call.tool_call.tool_name, call.tool_call.arguments, call.decide_time, call.text]
    seen += [round((call.expire_time - call.create_time).total_seconds())]
    waiting = (await session.refresh()).latest_run
    assert waiting is not None
    seen += [waiting.state, waiting.approval_id == call.approval_id, call.run_id == waiting.run_id]
    seen += [await refused(decide.answer(call.approval_id, "yes"))]
    seen += [await refused(decide.get(new_id(IdKind.APPROVAL))), await refused(decide.get("apr_1"))]
    edited = {**CALL, "content": "bye"}
    approved = await decide.approve(call.approval_id, edited)
    seen += [approved.state, approved.edited_arguments, approved.decided_by != ""]
    await session.result(timeout=60)
    seen += [(await decide.approve(call.approval_id, edited)).state]
    seen += [await refused(decide.approve(call.approval_id)), await refused(decide.deny(call.approval_id))]
    seen += [event.run_state async for event in session.events()]

    session = await mesh.spawn(
        f"ask_user {json.dumps({'question': QUESTION, 'choices': CHOICES})}", agent="clerk"
    )
    question = await asked(mesh, session)
    seen += [question.question, question.reason, question.tool_call]
    seen += [await refused(decide.approve(question.approval_id))]
    seen += [await refused(decide.answer(question.approval_id, "green"))]
    answered = await decide.answer(question.approval_id, "blue")
    seen += [answered.state, answered.text, (await session.result(timeout=60)).run.approval_id]
    for state in ("", "APPROVED", "DENIED"):
        seen += [len([one async for one in decide.list(state=state)])]
    for condition in ({"tool_name": "write_file"}, {"agent_id": "none"}, {"session_id": session.session_id}):
        seen += [[one.state async for one in decide.list(**condition)]]
    return seen


async def withdrawn_approvals(mesh: Mesh, _: Path) -> Record:
    prompt = "You are the caller. Make the call that you are given, and say what came of it."
    await mesh.agents.put(Agent("clerk", system_prompt=prompt, tools=("ask_user",)))
    seen: Record = []
    for end in ("interrupt", "interrupt with a text", "kill"):
        task = f"ask_user {json.dumps({'question': QUESTION, 'choices': CHOICES})}"
        session = await mesh.spawn(task, agent="clerk", mode=SessionMode.SESSION)
        approval_id = (await asked(mesh, session)).approval_id
        if end == "kill":
            seen += [await session.kill()]
        else:
            run = await session.interrupt("Be quick." if "text" in end else "")
            assert run is not None
            seen += [run.approval_id]
        withdrawn = await mesh.approvals.get(approval_id)
        seen += [withdrawn.state, withdrawn.decided_by, withdrawn.decide_time is not None]
        seen += [await refused(mesh.approvals.answer(approval_id, "blue"))]
        try:
            await session.result(timeout=60)
        except RunFailed as failed:
            seen += [failed.reason, failed.state]
        await session.kill()
        seen += [(event.kind, event.run_state) async for event in session.events()]
    return seen


@pytest.mark.parametrize(
    "scenario",
    [
        one_run, conversation, listed, versions, repeats, killed, interrupted, refusals, agents,
        approvals, withdrawn_approvals,
    ],
    ids=lambda one: one.__name__,
)  # fmt: skip
async def test_scenario_leaves_the_same_record(
    real: Mesh, tmp_path: Path, scenario: Callable[[Mesh, Path], Awaitable[Record]]
) -> None:
    fake = FakeMesh()
    for _ in range({killed: 1, interrupted: 2}.get(scenario, 0)):
        fake.holds()
    if scenario is approvals:
        fake.requests_approval("write_file", CALL, reason="the agent's policy names write_*")
        fake.answers("done")
        fake.asks(QUESTION, *CHOICES)
    elif scenario is withdrawn_approvals:
        for script in ("", "done", ""):
            fake.asks(QUESTION, *CHOICES)
            fake.answers(*filter(None, [script]))
    fake.answers(*[said] * 5)
    assert await scenario(fake, tmp_path) == await scenario(real, tmp_path)
