"""The replica is killed, paused or failed on the detours of FinalizeRun."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, Revise
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_SUPERSEDED
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.finalizing import Finalizing, open_finalizing, outcome
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.steps import ABSENT, REVISED, UNASKED, WITHDRAWN, steps_of
from tests.support.chaos.victim import Victim
from tests.support.session.drafting import draft, entries_of
from tests.support.session.harness import Mesh
from tests.support.session.plugins import Plugin, plugged

NOT_HEARD = Reason.DEPENDENCY_UNAVAILABLE.value
TOO_LATE = Reason.RUN_LEASE_LOST.value
REVISE = FinalizeDecision(revise=Revise(reason="shorter, please"))
CUT_OFF = pytest.mark.parametrize("fault", [Fault.KILL, Fault.FAIL])


@pytest.fixture
async def own(mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer) -> Finalizing:
    """A run with a draft."""
    return await open_finalizing(mesh, victim, recovery, transcript)


@pytest.fixture
async def replacing(own: Finalizing, victim: Victim) -> Finalizing:
    """Return a run whose first draft was labelled final when its runner was lost."""
    with victim.planned("Transcripts.append: answered", Fault.CUT):
        assert outcome(await own.call_victim()) == NOT_HEARD
    second = await own.take_over("43")
    assert second is not None
    return second


async def revisions(own: Finalizing) -> dict[str, int]:
    """Count the superseding labels, the revision notes and the revision events of the draft."""
    bodies = [entry.body for entry in await entries_of(own.transcript, own.held)]
    superseded = [(body.label.entry_id, body.label.kind) for body in bodies if body.HasField("label")]
    events = await own.recovery.events(own.mesh.tenant, own.session_id)
    return {
        "superseded": superseded.count((own.request.draft_entry_id, LABEL_KIND_SUPERSEDED)),
        "notes": [body.system_note.topic for body in bodies].count("revision"),
        "events": [event["kind"] for event in events].count("REVISION"),
    }


@CUT_OFF
@pytest.mark.parametrize("step", steps_of(REVISED[2:]))
async def test_FinalizeRun__revision_cut_off_and_repeated(
    own: Finalizing, peers: dict[str, str], step: str, fault: Fault
) -> None:
    async with plugged(own.mesh, peers, Plugin(on_finalize=REVISE)):
        with own.victim.planned(step, fault):
            assert outcome(await own.call_victim()) == NOT_HEARD
        answers = [await own.call_healthy() for _ in range(2)]
        assert [answer.revise.number for answer in answers] == [1, 1]
    assert await revisions(own) == {"superseded": 1, "notes": 1, "events": 1}
    run = (await own.mesh.get(own.session_id)).latest_run
    assert (run.state, run.revision_count) == (session_pb2.RUN_STATE_RUNNING, 1)
    again = replace(own, request=await draft(own.transcript, own.held, "4"))
    async with plugged(own.mesh, peers, Plugin()):
        assert outcome(await again.call_healthy()) == "accepted"
    await again.check()


@pytest.mark.parametrize("step", steps_of(REVISED[2:]))
async def test_FinalizeRun__revision_paused_while_the_run_is_taken_over(
    own: Finalizing, peers: dict[str, str], step: str
) -> None:
    plugin = Plugin(on_finalize=REVISE)
    async with plugged(own.mesh, peers, plugin):
        plugin_agrees = Plugin().on_finalize
        new, heard = await paused(own, step, lambda: setattr(plugin, "on_finalize", plugin_agrees))
    is_written = step == "FinalizeSaga._revise: committed"
    assert heard == "revise" if is_written else heard in (TOO_LATE, NOT_HEARD)
    assert max((await revisions(own)).values()) <= 1
    await new.check()


@CUT_OFF
@pytest.mark.parametrize("step", steps_of(UNASKED[2:]))
async def test_FinalizeRun__cut_off_when_a_plugin_had_failed(
    own: Finalizing, peers: dict[str, str], step: str, fault: Fault
) -> None:
    async with plugged(own.mesh, peers, Plugin()):
        pass  # Registered, and gone.
    with own.victim.planned(step, fault):
        assert outcome(await own.call_victim()) == NOT_HEARD
    assert outcome(await own.call_healthy()) == Reason.PLUGIN_FAILED.value
    assert (await own.mesh.get(own.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    async with plugged(own.mesh, peers, Plugin()):
        assert outcome(await own.call_healthy()) == "accepted"
    await own.check()


@CUT_OFF
@pytest.mark.parametrize("step", steps_of(WITHDRAWN[1:3]))
async def test_FinalizeRun__cut_off_while_an_earlier_draft_is_withdrawn(
    replacing: Finalizing, step: str, fault: Fault
) -> None:
    with replacing.victim.planned(step, fault):
        assert outcome(await replacing.call_victim()) == NOT_HEARD
    assert outcome(await replacing.call_healthy()) == "accepted"
    await replacing.check()


@pytest.mark.parametrize("step", steps_of(WITHDRAWN[1:3]))
async def test_FinalizeRun__paused_while_an_earlier_draft_is_withdrawn(
    replacing: Finalizing, step: str
) -> None:
    third, heard = await paused(replacing, step)
    assert heard in (TOO_LATE, NOT_HEARD)
    await third.check()


@CUT_OFF
@pytest.mark.parametrize("step", steps_of(ABSENT[3:]))
async def test_FinalizeRun__cut_off_while_a_draft_that_is_not_there_is_refused(
    own: Finalizing, step: str, fault: Fault
) -> None:
    absent = own.with_no_draft()
    with own.victim.planned(step, fault):
        assert outcome(await absent.call_victim()) in (NOT_HEARD, Reason.NOT_FOUND.value)
    assert outcome(await absent.call_healthy()) == Reason.NOT_FOUND.value
    assert outcome(await own.call_healthy()) == "accepted"
    await own.check()


@pytest.mark.parametrize("step", steps_of(ABSENT[3:]))
async def test_FinalizeRun__paused_while_a_draft_that_is_not_there_is_refused(
    own: Finalizing, step: str
) -> None:
    new, heard = await paused(own.with_no_draft(), step)
    assert heard in (TOO_LATE, NOT_HEARD, Reason.NOT_FOUND.value)
    await new.check()


async def paused(old: Finalizing, step: str, meanwhile: Any = bool) -> tuple[Finalizing, str]:
    """Pause the replica at the step until another runner has ended the run."""
    pid = await old.victim.serving()
    with old.victim.planned(step, Fault.PAUSE):
        call = asyncio.create_task(old.call_victim())
        await old.victim.stopped(pid)
        meanwhile()
        new = await old.take_over("44")
        assert new is not None
        assert outcome(await new.call_healthy()) == "accepted"
        old.victim.resume(pid)
        return new, outcome(await call)
