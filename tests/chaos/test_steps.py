"""Each path of the sagas is what its table says, and there are no others."""

import ast
from pathlib import Path

import pytest
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, Revise
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.operations import finalize_saga, spawn_repeat, spawn_saga, spawn_undo

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.finalizing import open_finalizing, outcome
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.spawning import BAD, open_spawning
from tests.support.chaos.steps import (
    ABSENT,
    ACCEPTED,
    BEHIND_FAULTS,
    PATHS,
    REVISED,
    SPAWNED,
    SPAWNED_BEFORE,
    SPAWNED_BY_A_CLIENT,
    UNASKED,
    UNDONE,
    UNJUDGED,
    WITHDRAWN,
    difference,
    steps_of,
)
from tests.support.chaos.victim import Victim
from tests.support.session.enabled_hooks import enable_shared
from tests.support.session.harness import Mesh
from tests.support.session.plugins import Plugin, plugged

PEERS = {"sets": "AttachmentSets", "transcripts": "Transcripts", "hooks": "Hooks"}


def named(module: Path) -> set[str]:
    """The transactions and calls that the source of a saga makes, as failpoints call them."""
    found = set()
    for saga in ast.walk(ast.parse(module.read_text())):
        if not isinstance(saga, ast.ClassDef):
            continue
        for function in saga.body:
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="database"))):
                        assert isinstance(function, ast.AsyncFunctionDef)
                        found.add(f"{saga.name}.{function.name}")
                    case ast.Call(
                        func=ast.Attribute(attr=statement), args=[ast.Attribute(attr="database"), *_]
                    ):
                        found.add(statement)
                    case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=peer), attr=method)) if (
                        peer in PEERS
                    ):
                        found.add(f"{PEERS[peer]}.{method}")
    return found


@pytest.mark.parametrize("module", [spawn_saga, spawn_repeat, spawn_undo, finalize_saga])
def test_whatever_a_saga_does_is_in_a_table(module: object) -> None:
    source = named(Path(str(module.__file__)))  # type: ignore[attr-defined]
    told = {step.partition(":")[0].partition(" (")[0] for path in PATHS.values() for step in steps_of(path)}
    assert len(source) >= (2 if module is spawn_repeat else 4)
    assert source - told - set(BEHIND_FAULTS) == set()


def test_difference_names_steps_that_are_missing_or_out_of_order() -> None:
    steps = steps_of(SPAWNED)
    assert difference(SPAWNED, steps) == ""
    beside = steps.index("AttachmentSets.stage: call")
    turned = [
        *steps[:beside],
        *steps[beside + 2 : beside + 6],
        *steps[beside : beside + 2],
        *steps[beside + 6 :],
    ]
    assert difference(SPAWNED, turned) == ""
    assert difference(SPAWNED, steps[:-1]) == "not reached: ['activate_session: committed']"
    assert difference(SPAWNED, [*steps, "New.step: call"]) == "in no table: ['New.step: call']"
    assert difference(SPAWNED, [steps[1], steps[0], *steps[2:]]).startswith("out of order")
    assert difference(SPAWNED, [*steps, steps[0]]).startswith("reached again")


async def test_SpawnSession__steps(mesh: Mesh, victim: Victim, recovery: RecoveryChecks) -> None:
    spawning = await open_spawning(mesh, victim, recovery)
    with victim.planned("", Fault.FAIL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert difference(SPAWNED, reached) == ""
    await spawning.check(heard, reached)
    with victim.planned("", Fault.FAIL) as failpoints:
        await spawning.call_victim()
        assert difference(SPAWNED_BEFORE, failpoints.steps()) == ""


async def test_SpawnSession__steps_of_a_client(mesh: Mesh, victim: Victim, recovery: RecoveryChecks) -> None:
    spawning = await open_spawning(mesh, victim, recovery, by_client=True)
    with victim.planned("", Fault.FAIL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert difference(SPAWNED_BY_A_CLIENT, reached) == ""
    await spawning.check(heard, reached)


async def test_SpawnSession__steps_of_one_that_is_undone(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks
) -> None:
    spawning = await open_spawning(mesh, victim, recovery, BAD)
    with victim.planned("", Fault.FAIL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert difference(UNDONE, reached) == ""
    await spawning.check(heard, reached)


async def test_FinalizeRun__steps(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer
) -> None:
    own = await open_finalizing(mesh, victim, recovery, transcript)
    with victim.planned("", Fault.FAIL) as failpoints:
        assert outcome(await own.call_victim()) == "accepted"
        assert difference(ACCEPTED, failpoints.steps()) == ""
    await own.check()


async def test_FinalizeRun__steps_of_a_draft_that_nothing_judges(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer
) -> None:
    await enable_shared(mesh)
    own = await open_finalizing(mesh, victim, recovery, transcript)
    with victim.planned("", Fault.FAIL) as failpoints:
        assert outcome(await own.call_victim()) == "accepted"
        assert difference(UNJUDGED, failpoints.steps()) == ""
    await own.check()


async def test_FinalizeRun__steps_of_a_revision_and_of_a_failed_plugin(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer, peers: dict[str, str]
) -> None:
    own, other = [await open_finalizing(mesh, victim, recovery, transcript) for _ in range(2)]
    async with plugged(mesh, peers, Plugin(on_finalize=FinalizeDecision(revise=Revise(reason="shorter")))):
        with victim.planned("", Fault.FAIL) as failpoints:
            assert outcome(await own.call_victim()) == "revise"
            assert difference(REVISED, failpoints.steps()) == ""
    with victim.planned("", Fault.FAIL) as failpoints:  # The plugin is gone.
        assert outcome(await other.call_victim()) == Reason.PLUGIN_FAILED.value
        assert difference(UNASKED, failpoints.steps()) == ""


async def test_FinalizeRun__steps_of_a_draft_that_is_not_there(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer
) -> None:
    own = await open_finalizing(mesh, victim, recovery, transcript)
    with victim.planned("", Fault.FAIL) as failpoints:
        assert outcome(await own.with_no_draft().call_victim()) == Reason.NOT_FOUND.value
        assert difference(ABSENT, failpoints.steps()) == ""
    assert outcome(await own.call_healthy()) == "accepted"
    await own.check()


async def test_FinalizeRun__steps_of_a_draft_in_the_place_of_another(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, transcript: Peer
) -> None:
    first = await open_finalizing(mesh, victim, recovery, transcript)
    with victim.planned("Transcripts.append: call", Fault.CUT):
        await first.call_victim()
    second = await first.take_over("43")
    assert second is not None
    with victim.planned("", Fault.FAIL) as failpoints:
        assert outcome(await second.call_victim()) == "accepted"
        assert difference(WITHDRAWN, failpoints.steps()) == ""
    await second.check()
