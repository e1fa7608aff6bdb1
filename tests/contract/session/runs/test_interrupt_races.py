"""One winner among an answer, an interrupt, an urgent message, a failure and a kill."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.calls import fail, kill, take_all
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import INTERRUPTED, OPEN, RUNNING, SUCCEEDED, end, interrupt, steer
from tests.support.session.watching import watched

_SCHEDULES = 1000
_SEEDS = 4
_LIVE = (RUNNING, session_pb2.RUN_STATE_FINALIZING)
_FAILED, _KILLED = session_pb2.RUN_STATE_FAILED, session_pb2.RUN_STATE_KILLED
_LOST = (Reason.RUN_STATE, Reason.RUN_LEASE_LOST, Reason.TOKEN_REVOKED)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.mark.parametrize("seed", range(_SEEDS))
async def test_InterruptRun__race_with_the_answer_a_failure_and_a_kill_has_one_winner(
    mesh: Mesh, transcript: Peer, seed: int
) -> None:
    """Everybody hears of the same end, whatever the order in which the calls arrive. A kill may meet
    the run that an urgent message queued behind that end.
    """
    dice, seen = random.Random(seed), Counter[str]()
    for _ in range(_SCHEDULES // _SEEDS):
        race = await _Race.begin(mesh, transcript, dice)
        heard = await race.run()
        run = await race.settled()
        state = session_pb2.RunState.Name(run.state)
        seen[state] += 1
        for name, outcome in heard.items():
            assert _agrees(name, outcome, run) or (name == "kill" and "steer" in heard), (state, heard)
        assert await race.ends_watched() == [(run.run_id, run.state)], heard
        waited = pb.WaitSessionRequest(session_id=race.session_id)
        waited.timeout.FromSeconds(0)
        latest = (await mesh.client(mesh.sessions.WaitSession, waited)).session.latest_run
        assert latest == run or (latest.run_id != run.run_id and "steer" in heard)
    print(dict(seen))
    assert len(seen) == 4, seen


class _Race:
    """A held run, and those who want it to end. Its runner obeys what it hears."""

    def __init__(
        self, mesh: Mesh, dice: random.Random, held: run_pb.ClaimedRun, offer: run_pb.FinalizeRunRequest
    ) -> None:
        self.mesh, self._dice, self._held, self._offer = mesh, dice, held, offer
        self.session_id = held.session.session_id

    @classmethod
    async def begin(cls, mesh: Mesh, transcript: Peer, dice: random.Random) -> "_Race":
        mode = dice.choice([OPEN, session_pb2.SESSION_MODE_RUN])
        held = await mesh.claim((await mesh.spawn(mode=mode)).session_id)
        return cls(mesh, dice, held, await draft(transcript, held, "42"))

    async def run(self) -> dict[str, Any]:
        """Let some of them act at random moments. Return the outcome of each, or its refusal."""
        actors: dict[str, Callable[[], Awaitable[Any]]] = {
            "finalize": self._finalize,
            "interrupt": lambda: interrupt(self.mesh, self.session_id, run_id=self._held.run.run_id),
            "kill": lambda: kill(self.mesh, self.session_id),
            "fail": lambda: fail(self.mesh, self._held),
            "steer": lambda: steer(self.mesh, self.session_id),
        }
        others = self._dice.sample(["kill", "fail", "steer"], self._dice.randint(0, 2))
        names = ["finalize", "interrupt", *others]
        outcomes = await asyncio.gather(*(self._act(actors[name]) for name in names))
        return dict(zip(names, outcomes, strict=True))

    async def settled(self) -> session_pb2.Run:
        """Let the runner do what is left for it to do. Return the run, which has ended."""
        while (run := await self._run()).state in _LIVE:
            if run.HasField("interrupt_time"):
                await end(self.mesh, self._held)
            else:
                await take_all(self.mesh, self._held)
                await self._finalize()
        return run

    async def ends_watched(self) -> list[tuple[str, int]]:
        """Return the run and the state of each end that a watcher sees."""
        messages = await watched(self.mesh, self.session_id, ends_at_newest=True)
        events = [one.session_event for one in messages if one.HasField("session_event")]
        ends = (SUCCEEDED, INTERRUPTED, _FAILED, _KILLED)
        return [
            (event.run_id, event.run_state)
            for event in events
            if event.run_state in ends and event.run_id == self._held.run.run_id
        ]

    async def _act(self, act: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self._dice.random() * 0.02)
        try:
            return await act()
        except MeshError as error:
            return error

    async def _finalize(self) -> run_pb.FinalizeRunResponse:
        answer: run_pb.FinalizeRunResponse = await self.mesh.run(
            self._held, self.mesh.runs.FinalizeRun, self._offer
        )
        return answer

    async def _run(self) -> session_pb2.Run:
        run = (await self.mesh.get(self.session_id)).latest_run
        if run.run_id == self._held.run.run_id:
            return run
        # A message came behind the end of the run, and queued another one.
        return await interrupt(self.mesh, self.session_id, run_id=self._held.run.run_id)


def _agrees(name: str, outcome: Any, run: session_pb2.Run) -> bool:
    """Return whether this is what the caller may have heard, if the run ended like this."""
    if isinstance(outcome, MeshError):
        return _may_be_refused(name, outcome.reason, run)
    match name:
        case "finalize":
            said = outcome.WhichOneof("outcome")
            if said == "accepted":
                return run.state == SUCCEEDED
            return said == "messages_pending" or run.state in (INTERRUPTED, _KILLED, _FAILED)
        case "interrupt":
            if outcome.state in _LIVE:
                return outcome.HasField("interrupt_time") and run.state != SUCCEEDED
            return outcome.state == run.state
        case "kill":
            return (outcome == 1) == (run.state == _KILLED)
        case "fail":
            return run.state == _FAILED
    return True


def _may_be_refused(name: str, reason: Reason, run: session_pb2.Run) -> bool:
    match name:
        case "finalize":
            return reason in _LOST and run.state != SUCCEEDED
        case "fail":
            return reason in _LOST and run.state != _FAILED
        case "steer":
            return reason in (Reason.SESSION_CLOSED, Reason.RUN_STATE)
    return False
