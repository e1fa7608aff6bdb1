"""One winner of the race between an interrupt, the answer of the run and a kill."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.calls import kill, offer
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import (
    INTERRUPTED,
    RUNNING,
    SUCCEEDED,
    end,
    held_run,
    interrupt,
)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.mark.parametrize("seed", range(4))
async def test_InterruptRun__race_with_the_answer_and_a_kill_has_one_winner(
    mesh: Mesh, transcript: Peer, seed: int
) -> None:
    """Every caller hears of the same end, whatever the order in which the calls arrive."""
    dice = random.Random(seed)
    seen = Counter[int]()
    for _ in range(12):
        held = await held_run(mesh)
        session_id, offered = held.session.session_id, await draft(transcript, held, "42")

        async def after(pause: float, call: Any) -> Any:
            await asyncio.sleep(pause)
            return await call

        async def stopping(session_id: str = session_id, held: run_pb.ClaimedRun = held) -> Any:
            asked = await interrupt(mesh, session_id)
            return await end(mesh, held) if asked.state == RUNNING or asked.interrupt_time.seconds else asked

        calls = [offer(mesh, held, offered), stopping()]
        if dice.random() < 0.3:
            calls.append(kill(mesh, session_id))
        pauses = [dice.random() * 0.03 for _ in calls]
        outcomes = await asyncio.gather(*map(after, pauses, calls), return_exceptions=True)
        final = (await mesh.get(session_id)).latest_run
        seen[final.state] += 1
        answered, stopped = outcomes[:2]
        if final.state == SUCCEEDED:
            assert answered.accepted.run == final
            assert stopped == final
            assert not final.HasField("interrupt_time")
        elif final.state == INTERRUPTED:
            assert stopped == final
            assert isinstance(answered, MeshError) or answered.HasField("interrupted")
        else:
            assert final.state == session_pb2.RUN_STATE_KILLED
            assert isinstance(stopped, MeshError) or stopped == final
            assert isinstance(answered, MeshError) or answered.HasField("interrupted")
    print(f"seed {seed}: {dict(seen)}")
