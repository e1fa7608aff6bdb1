"""Drafts that plugins send back, and run ends that need no plugin."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.decision_pb2 import Finalize, FinalizeDecision, Revise
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_AGENT_FINALIZE
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.revision_pb2 import (
    REVISION_CAP_FINAL_EFFECTS,
    REVISION_CAP_LAST_TURN,
    REVISION_CAP_OBJECTION_KEY,
    REVISION_CAP_RUN,
    CappedRevision,
    RevisionCap,
)
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.session_pb2 import SESSION_EVENT_KIND_REVISION_CAPPED
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer

from tests.support.captured_logs import captured_warnings
from tests.support.hook.decisions import decision_of
from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import fail
from tests.support.session.crashing import Crash
from tests.support.session.drafting import draft, entries_of
from tests.support.session.finalizing import die, draft_of, finalize_beside, saga_with
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.terminal_paths import (
    Path,
    Stage,
    archived,
    deleted,
    deleted_with_its_parent,
    failed,
    killed,
    killed_with_its_parent,
    lost_by_every_runner,
    succeeded,
    timed_out,
)

REVISE = FinalizeDecision(revise=Revise(reason="shorter, please"))
FINALIZE = FinalizeDecision(finalize=Finalize(reason="it is good enough"))
HOOK_DECIDED = session_pb2.SESSION_EVENT_KIND_HOOK_DECIDED


@pytest.fixture
async def stage(_served_mesh: Mesh, open_mesh: OpenMesh, peers: dict[str, str]) -> AsyncIterator[Stage]:
    mesh = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await mesh.create_tenant()
    async with caller_at(peers["transcript"], "transcript") as transcript:
        yield Stage(mesh, open_mesh, transcript, peers, session_pb2.CLEANUP_DELETE)


async def offer(stage: Stage, held: run_pb.ClaimedRun, text: str, **more: Any) -> run_pb.FinalizeRunResponse:
    request = await draft(stage.transcript, held, text)
    request.MergeFrom(run_pb.FinalizeRunRequest(**more))
    answer: run_pb.FinalizeRunResponse = await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, request)
    return answer


async def context(transcript: Peer, held: run_pb.ClaimedRun) -> str:
    """Return the entries that a model would read."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    request = transcript_pb.AssembleContextRequest(session_id=held.session.session_id, token_budget=100_000)
    with use_token(held.run_token):
        return str(await transcript.unary(stub.AssembleContext, request, timeout_seconds=60))


async def inbox(stage: Stage, held: run_pb.ClaimedRun) -> str:
    return str(await stage.mesh.run(held, stage.mesh.runs.ListInbox, run_pb.ListInboxRequest()))


async def events_of(stage: Stage, session_id: str) -> list[session_pb2.SessionEvent]:
    """Return the events of a closed session."""
    request = session_pb.WatchSessionRequest(session_id=session_id)
    with use_token(client_tokens(stage.mesh.keys).client_token(stage.mesh.tenant, "test", 60)):
        answers = stage.mesh.peer.stream(stage.mesh.sessions.WatchSession, request, timeout_seconds=60)
        return [answer.session_event async for answer in answers]


async def check_tenant_sees_cap(
    stage: Stage,
    held: run_pb.ClaimedRun,
    answer: run_pb.FinalizeRunResponse,
    cap: "RevisionCap.ValueType",
) -> None:
    """Check that the answer, the run and an event before its end have the cap, once."""
    expected = [CappedRevision(plugin="gate", cap=cap)]
    assert list(answer.accepted.run.capped_revisions) == expected
    assert list((await stage.mesh.get(held.session.session_id)).latest_run.capped_revisions) == expected
    capped, ended = (await events_of(stage, held.session.session_id))[-3:-1]
    assert (capped.kind, capped.run_id) == (SESSION_EVENT_KIND_REVISION_CAPPED, held.run.run_id)
    name = RevisionCap.Name(cap).removeprefix("REVISION_CAP_")
    assert capped.detail == f"delivered although a revision was requested by gate ({name})"
    assert ended.run_state == session_pb2.RUN_STATE_SUCCEEDED


async def asked_about_drafts(stage: Stage) -> list[str]:
    """The decisions of the plugins, oldest first."""
    async with caller_at(stage.peers["hook"], "hook") as hook:
        stub: Any = HookServiceStub(hook.channel)
        with use_token(client_tokens(stage.mesh.keys).client_token(stage.mesh.tenant, "test", 60)):
            listed = await hook.unary(
                stub.ListDeliveries, hook_pb.ListDeliveriesRequest(), timeout_seconds=60
            )
    return [
        decision_of(row) for row in reversed(listed.deliveries) if row.hook == HOOK_KIND_BEFORE_AGENT_FINALIZE
    ]


async def test_FinalizeRun__a_draft_that_was_sent_back_is_in_no_later_context_and_not_with_the_parent(
    stage: Stage,
) -> None:
    parent = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    child = await stage.mesh.claim((await stage.mesh.spawn_as(parent)).session_id)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        sent_back = [await offer(stage, child, text) for text in ("alpha", "beta")]
    assert [answer.revise.number for answer in sent_back] == [1, 2]
    read = await context(stage.transcript, child)
    assert ("alpha" in read, "beta" in read, "shorter, please" in read) == (False, False, True)
    assert await inbox(stage, parent) == ""
    async with plugged(stage.mesh, stage.peers, Plugin()):
        assert (await offer(stage, child, "gamma")).HasField("accepted")
    heard = await inbox(stage, parent)
    assert ("alpha" in heard, "beta" in heard, "gamma" in heard) == (False, False, True)
    ended = (await stage.mesh.get(child.session.session_id)).latest_run
    assert (ended.result_text, ended.revision_count) == ("gamma", 2)
    entries = await entries_of(stage.transcript, child)
    kinds = [entry.body.label.kind for entry in entries if entry.body.HasField("label")]
    assert kinds == [LABEL_KIND_SUPERSEDED, LABEL_KIND_SUPERSEDED, LABEL_KIND_FINAL]


@pytest.mark.parametrize(
    "more", [{"is_last_turn": True}, {"has_final_effects": True}, {"draft_text": "beta"}], ids=str
)
async def test_FinalizeRun__a_draft_that_was_sent_back_is_not_the_answer_whatever_else_is_said_of_it(
    stage: Stage, more: dict[str, Any]
) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    request = await draft(stage.transcript, held, "alpha")
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        answer = await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, request)
    assert answer.revise.number == 1
    request.MergeFrom(run_pb.FinalizeRunRequest(**more))
    async with plugged(stage.mesh, stage.peers, Plugin()):
        with pytest.raises(MeshError) as caught:
            await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, request)
        assert (caught.value.reason, caught.value.facts["draft_entry_id"]) == (
            Reason.RUN_STATE,
            request.draft_entry_id,
        )
        assert (await offer(stage, held, "alpha")).accepted.run.result_text == "alpha"
    assert "alpha" in await context(stage.transcript, held)


async def test_FinalizeRun__past_the_cap_the_last_draft_is_the_answer_and_the_log_says_so(
    stage: Stage,
) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        with captured_warnings() as log:  # Whatever is opened in this process sets the level of all.
            answers = [await offer(stage, held, f"draft {number}") for number in range(4)]
    assert [answer.WhichOneof("outcome") for answer in answers] == ["revise", "revise", "revise", "accepted"]
    assert answers[-1].accepted.run.result_text == "draft 3"
    capped = [entry for entry in log if entry["event"] == "revision_capped"]
    assert [(entry["run"], entry["plugins"]) for entry in capped] == [(held.run.run_id, ["gate"])]
    await check_tenant_sees_cap(stage, held, answers[-1], REVISION_CAP_RUN)


async def test_FinalizeRun__nothing_is_sent_back_after_effects_that_cannot_be_undone(stage: Stage) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        answer = await offer(stage, held, "sent the mail", has_final_effects=True)
    assert answer.accepted.run.result_text == "sent the mail"
    assert await asked_about_drafts(stage) == ["revise", "capped"]
    await check_tenant_sees_cap(stage, held, answer, REVISION_CAP_FINAL_EFFECTS)


async def test_FinalizeRun__the_draft_of_a_last_turn_is_the_answer_also_where_a_revision_is_wanted(
    stage: Stage,
) -> None:
    """No runner could revise the draft of a last turn, but plugins are asked all the same."""
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        assert (await offer(stage, held, "draft 1")).revise.number == 1
        with captured_warnings() as log:
            answer = await offer(stage, held, "draft 2", is_last_turn=True)
    assert answer.accepted.run.result_text == "draft 2"
    assert answer.accepted.run.revision_count == 1
    assert await asked_about_drafts(stage) == ["revise", "revise", "capped"]
    await check_tenant_sees_cap(stage, held, answer, REVISION_CAP_LAST_TURN)
    capped = [(entry["run"], entry["plugins"]) for entry in log if entry["event"] == "revision_capped"]
    assert capped == [(held.run.run_id, ["gate"])]


async def test_FinalizeRun__the_tenant_sees_that_the_attempts_for_an_objection_are_used_up(
    stage: Stage,
) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    keyed = FinalizeDecision(revise=Revise(reason="shorter, please", objection_key="length"))
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=keyed)):
        assert (await offer(stage, held, "draft 1")).revise.number == 1
        answer = await offer(stage, held, "draft 2")
    assert answer.accepted.run.result_text == "draft 2"
    await check_tenant_sees_cap(stage, held, answer, REVISION_CAP_OBJECTION_KEY)


class DyingHooks:
    """The hook client of a process that dies when it has the decision about a draft."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    async def before_finalize(self, *arguments: Any) -> None:
        await self.hooks.before_finalize(*arguments)
        await die()


async def crash_behind_gate(
    stage: Stage, held: run_pb.ClaimedRun, request: run_pb.FinalizeRunRequest
) -> None:
    async with saga_with(stage.mesh, die) as saga:
        dying: Any = DyingHooks(saga.hooks)
        with impersonate(stage.mesh.tenant):
            await replace(saga, hooks=dying).finalize(stage.mesh.tenant, draft_of(held, request))


async def crash_behind_label(
    stage: Stage, held: run_pb.ClaimedRun, request: run_pb.FinalizeRunRequest
) -> None:
    await finalize_beside(stage.mesh, held, request, die)


@pytest.mark.parametrize("crash", [crash_behind_gate, crash_behind_label])
async def test_FinalizeRun__a_crash_before_the_end_keeps_what_the_tenant_sees_of_a_cap(
    stage: Stage, crash: Any
) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    request = await draft(stage.transcript, held, "draft")
    request.is_last_turn = True
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        with pytest.raises(Crash):
            await crash(stage, held, request)
    assert not (await stage.mesh.get(held.session.session_id)).latest_run.capped_revisions
    async with plugged(stage.mesh, stage.peers, Plugin()):  # It would not object any more.
        answers = [await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, request) for _ in range(2)]
    assert answers[0] == answers[1]
    await check_tenant_sees_cap(stage, held, answers[0], REVISION_CAP_LAST_TURN)
    assert await asked_about_drafts(stage) == ["revise", "capped"]


async def test_FailRun__a_draft_that_is_not_delivered_has_no_cap(stage: Stage) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    request = await draft(stage.transcript, held, "draft")
    request.is_last_turn = True
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE)):
        with pytest.raises(Crash):
            await crash_behind_label(stage, held, request)
    await fail(stage.mesh, held)
    assert not (await stage.mesh.get(held.session.session_id)).latest_run.capped_revisions
    kinds = [event.kind for event in await events_of(stage, held.session.session_id)]
    assert SESSION_EVENT_KIND_REVISION_CAPPED not in kinds


async def test_FinalizeRun__an_event_names_the_plugins_that_sent_a_draft_back(stage: Stage) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=REVISE), count=2):
        await offer(stage, held, "draft 1")
    async with plugged(stage.mesh, stage.peers, Plugin(), count=2):
        await offer(stage, held, "draft 2")
    events = await events_of(stage, held.session.session_id)
    revised = [event.detail for event in events if event.kind == session_pb2.SESSION_EVENT_KIND_REVISION]
    assert revised == ["revision 1 of 3, requested by gate, gate-1"]
    assert HOOK_DECIDED not in {event.kind for event in events}, "no plugin changed what became the answer"


@pytest.mark.parametrize("crash", [None, crash_behind_gate, crash_behind_label])
async def test_FinalizeRun__an_event_before_the_end_names_the_plugin_that_declared_the_draft_final(
    stage: Stage, crash: Any
) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    request = await draft(stage.transcript, held, "draft")
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=FINALIZE)):
        if crash is not None:
            with pytest.raises(Crash):
                await crash(stage, held, request)
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=FINALIZE if crash is None else None)):
        for _ in range(2):
            await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, request)
    events = await events_of(stage, held.session.session_id)
    assert [event.kind for event in events].count(HOOK_DECIDED) == 1
    decided, ended = events[-3:-1]
    assert (decided.kind, decided.run_id) == (HOOK_DECIDED, held.run.run_id)
    assert decided.detail == "before_agent_finalize: gate declared the answer final"
    assert ended.run_state == session_pb2.RUN_STATE_SUCCEEDED


async def test_FailRun__a_draft_that_is_not_delivered_was_not_declared_final(stage: Stage) -> None:
    held = await stage.mesh.claim((await stage.mesh.spawn()).session_id)
    request = await draft(stage.transcript, held, "draft")
    async with plugged(stage.mesh, stage.peers, Plugin(on_finalize=FINALIZE)):
        with pytest.raises(Crash):
            await crash_behind_label(stage, held, request)
    await fail(stage.mesh, held)
    assert HOOK_DECIDED not in {event.kind for event in await events_of(stage, held.session.session_id)}


async def test_FinalizeRun__messages_come_before_the_draft_of_a_last_turn_too(stage: Stage) -> None:
    session_id = (await stage.mesh.spawn()).session_id
    held = await stage.mesh.claim(session_id)
    message = session_pb.SendMessageRequest(request_id="m1", session_id=session_id, text="Mind this.")
    await stage.mesh.client(stage.mesh.sessions.SendMessage, message)
    assert (await offer(stage, held, "draft", is_last_turn=True)).messages_pending.count == 1


UNASKED: list[Path] = [
    failed, killed, killed_with_its_parent, timed_out, lost_by_every_runner, deleted, deleted_with_its_parent,
]  # fmt: skip


@pytest.mark.parametrize("path", [*UNASKED, succeeded, archived], ids=lambda path: path.__name__)
async def test_FinalizeRun__plugins_are_asked_about_answers_and_about_no_other_end(
    stage: Stage, path: Path
) -> None:
    async with plugged(stage.mesh, stage.peers, Plugin()):
        await path(stage)
    assert await asked_about_drafts(stage) == ([] if path in UNASKED else ["continue"])


async def test_FinalizeRun__a_run_that_is_taken_over_has_no_more_revisions_than_one_that_is_not(
    stage: Stage,
) -> None:
    async with stage.open_mesh(lease_ttl_seconds=0.001) as brief:
        brief.tenant = stage.mesh.tenant
        session_id = (await brief.spawn()).session_id
        async with plugged(brief, stage.peers, Plugin(on_finalize=REVISE)):
            numbers = []
            for number in range(3):
                held = await stage.mesh.claim(session_id)
                numbers.append((await offer(stage, held, f"draft {number}")).revise.number)
                await stage.mesh.run(
                    held, stage.mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch)
                )
            held = await stage.mesh.claim(session_id)
            last = await offer(stage, held, "draft 3")
    assert numbers == [1, 2, 3]
    assert held.run.epoch == 4
    assert last.accepted.run.result_text == "draft 3"
