"""One winner among the people who decide, the end of the time, an interrupt and a kill."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.approvals import (
    QUEUED,
    WAITING,
    approve,
    deny,
    end_wait,
    get,
    take,
    waiting_run,
)
from tests.support.session.calls import kill
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import INTERRUPTED, interrupt
from tests.support.session.tables import rows, sweeping

_ROUNDS = 10


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [pb.EXPIRY_POLICY_DENY, pb.EXPIRY_POLICY_ESCALATE])
async def test_DecideApproval__of_all_who_decide_at_a_time_one_wins(
    mesh: Mesh, postgres: Any, seed: int, policy: pb.ExpiryPolicy.ValueType
) -> None:
    """All callers hear the same state, and the run never waits on for a decided approval."""
    dice = random.Random(seed)
    seen = Counter[str]()
    async with sweeping(mesh) as sweep:
        for _ in range(_ROUNDS):
            held, _, approval = await waiting_run(mesh, on_expiry=policy)
            approval_id, session_id = approval.approval_id, held.session.session_id

            async def expire(approval_id: str = approval_id) -> None:
                await end_wait(postgres, approval_id)
                await sweep.end_lost_runs()

            calls: dict[str, Any] = {
                "approve": approve(mesh, approval_id),
                "deny": deny(mesh, approval_id, by="bob"),
                "interrupt": interrupt(mesh, session_id),
                "kill": kill(mesh, session_id),
                "expire": expire(),
            }
            chosen = ["approve", "deny", dice.choice(["interrupt", "kill", "expire"])]
            for name in set(calls) - set(chosen):
                calls.pop(name).close()
            outcomes = dict(
                zip(calls, await asyncio.gather(*(after(dice, one) for one in calls.values())), strict=True)
            )
            decided = await get(mesh, approval_id)
            won = {name for name in ("approve", "deny") if answered(outcomes.get(name))}
            assert len(won) <= 1, outcomes
            state = pb.ApprovalState.Name(decided.state).removeprefix("APPROVAL_STATE_")
            seen[state] += 1
            assert (state in ("APPROVED", "DENIED")) == bool(won), (state, outcomes)
            assert won or policy == pb.EXPIRY_POLICY_DENY or "expire" not in outcomes, "it only escalates"
            for name in ("approve", "deny"):
                told = outcomes.get(name)
                if name in won:
                    assert told.approval.state == decided.state
                elif told is not None:
                    assert told.reason is Reason.APPROVAL_CLOSED, told
                    assert told.facts["state"] in (state, "EXPIRED")
            run = (await mesh.get(session_id)).latest_run
            assert run.state in (QUEUED, INTERRUPTED, session_pb2.RUN_STATE_KILLED), run
            assert run.state != WAITING
            parked = await rows(
                postgres, "select * from session.run_queue where run_id = %s and parked", run.run_id
            )
            assert parked == []
    print(dict(seen))


async def after(dice: random.Random, call: Any) -> Any:
    await asyncio.sleep(dice.random() * 0.02)
    try:
        return await call
    except MeshError as error:
        return error


def answered(outcome: Any) -> bool:
    return outcome is not None and not isinstance(outcome, MeshError)


async def test_TakeDecision__of_all_runners_that_ever_held_the_run_one_makes_the_call(mesh: Mesh) -> None:
    """Each is lost at a random moment: before it took the decision, or after."""
    dice = random.Random(7)
    for _ in range(6):
        held, key, approval = await waiting_run(mesh)
        await approve(mesh, approval.approval_id)
        may_make = 0
        for _ in range(4):
            held = await mesh.claim(held.session.session_id)
            if dice.random() < 0.5:
                may_make += not (await take(mesh, held, key)).was_begun
            release = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
            await mesh.run(held, mesh.runs.ReleaseRun, release)
        was_begun = (await get(mesh, approval.approval_id)).HasField("begin_time")
        assert may_make == was_begun
        await kill(mesh, held.session.session_id)
