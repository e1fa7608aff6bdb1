"""A run ends once, also if its finalizing replica is killed, paused or fails, in every state."""

import asyncio

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.finalizing import Finalizing, open_finalizing, outcome
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.steps import ACCEPTED, UNJUDGED, states_of, steps_of
from tests.support.chaos.victim import Victim
from tests.support.session.enabled_hooks import enable_shared
from tests.support.session.harness import Mesh

AT_EACH_STEP = pytest.mark.parametrize("step", steps_of(ACCEPTED))
IN_EACH_STATE = pytest.mark.parametrize("step", states_of(ACCEPTED))
IN_EACH_STATE_UNJUDGED = pytest.mark.parametrize("step", states_of(UNJUDGED))
NOT_HEARD = Reason.DEPENDENCY_UNAVAILABLE.value
TOO_LATE = Reason.RUN_LEASE_LOST.value


async def kill_and_repeat(own: Finalizing, victim: Victim, step: str) -> None:
    with victim.planned(step, Fault.KILL) as failpoints:
        assert outcome(await own.call_victim()) == NOT_HEARD
        assert failpoints.steps()[-1] == step
    assert outcome(await own.call_healthy()) == "accepted"
    assert outcome(await own.call_healthy()) == "accepted"
    await own.check()


async def kill_and_take_over(old: Finalizing, victim: Victim, step: str) -> None:
    """The runner is lost with the replica, and the next one has its own draft."""
    with victim.planned(step, Fault.KILL):
        assert outcome(await old.call_victim()) == NOT_HEARD
    new = await old.take_over("43")
    assert outcome(await old.call_healthy()) == ("accepted" if new is None else TOO_LATE)
    if new is not None:
        assert outcome(await new.call_healthy()) == "accepted"
        assert outcome(await old.call_healthy()) == TOO_LATE
    await (new or old).check()


@IN_EACH_STATE
async def test_FinalizeRun__killed_and_repeated(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str
) -> None:
    await kill_and_repeat(await open_finalizing(mesh, victim, recovery, transcript), victim, step)


@IN_EACH_STATE
async def test_FinalizeRun__killed_and_taken_over(
    keeping: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str
) -> None:
    """The runner is lost with the replica, and the next one has its own draft. Files are kept."""
    old = await open_finalizing(keeping, victim, recovery, transcript, session_pb2.CLEANUP_KEEP)
    await kill_and_take_over(old, victim, step)


@IN_EACH_STATE
@pytest.mark.parametrize("until", ["held", "ended"])
async def test_FinalizeRun__paused_while_the_run_is_taken_over(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str, until: str
) -> None:
    """It goes on while another runner holds the run, or has ended it."""
    old = await open_finalizing(mesh, victim, recovery, transcript)
    pid = await victim.serving()
    with victim.planned(step, Fault.PAUSE):
        call = asyncio.create_task(old.call_victim())
        await victim.stopped(pid)
        new = await old.take_over("43")
        if new is not None and until == "ended":
            assert outcome(await new.call_healthy()) == "accepted"
        victim.resume(pid)
        heard = outcome(await call)
    assert heard == "accepted" if new is None else heard in (TOO_LATE, NOT_HEARD)
    assert outcome(await old.call_healthy()) == ("accepted" if new is None else TOO_LATE)
    if new is not None:
        assert outcome(await new.call_healthy()) == "accepted"
    await (new or old).check()


@IN_EACH_STATE_UNJUDGED
async def test_FinalizeRun__killed_and_repeated_if_nothing_judges_the_draft(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str
) -> None:
    await enable_shared(mesh)
    await kill_and_repeat(await open_finalizing(mesh, victim, recovery, transcript), victim, step)


@IN_EACH_STATE_UNJUDGED
async def test_FinalizeRun__killed_and_taken_over_if_nothing_judges_the_draft(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str
) -> None:
    await enable_shared(mesh)
    old = await open_finalizing(mesh, victim, recovery, transcript)
    await kill_and_take_over(old, victim, step)


@AT_EACH_STEP
async def test_FinalizeRun__failed_and_repeated(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, step: str
) -> None:
    """A statement or a call fails before its effect, or its answer is lost."""
    own = await open_finalizing(mesh, victim, recovery, transcript)
    with victim.planned(step, Fault.FAIL):
        assert outcome(await own.call_victim()) == NOT_HEARD
    assert outcome(await own.call_healthy()) == "accepted"
    await own.check()
