"""A spawn with a file that is interrupted, and its invariants."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.chaos.recovery_checks import Answer, RecoveryChecks, answer_of
from tests.support.chaos.steps import SPAWNED, SPAWNED_BY_A_CLIENT, UNDONE, states_of, steps_of
from tests.support.chaos.victim import Victim
from tests.support.session.harness import Mesh, attachment
from tests.support.waiting import eventually

MADE = {"runs": 1, "queue": 1, "transcripts": 1, "entries": 3, "files": 1, "objects": 1}
"""By a spawn with a file."""

GOOD, BAD = "a.txt", "../evil"
"""Names of files: one with which it is spawned, and one for which it is undone."""

BY_A_CLIENT = steps_of(SPAWNED_BY_A_CLIENT[:1])
"""Steps of a spawn by a client that a spawn by a run does not have."""

EACH_STEP = [(GOOD, step) for step in steps_of(SPAWNED)] + [(BAD, step) for step in steps_of(UNDONE[3:])]
EACH_STATE = [(GOOD, step) for step in states_of(SPAWNED)] + [(BAD, step) for step in states_of(UNDONE[3:])]

TYPED = {Reason.DEPENDENCY_UNAVAILABLE, Reason.SPAWN_FAILED, Reason.ATTACHMENTS_INVALID_NAME}
"""Reasons with which a spawn that was cut off may be refused."""


@dataclass
class Spawning:
    """A held run and its spawn request; or no run, and the request of a client."""

    mesh: Mesh
    victim: Victim
    recovery: RecoveryChecks
    parent: run_pb.ClaimedRun | None
    request: dict[str, Any]
    before: dict[str, int]
    earlier: list[str]

    async def another(self) -> "Spawning":
        """Return another spawn by the same caller, with other content in a file of the same name.

        Steps of the undo of this one are not taken for steps of the other.
        """
        await self.victim.idle()
        await self.sweep()
        [file] = self.request["attachments"]
        request = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment(file.name, "bye")]}
        before, earlier = await self.recovery.remains.of(self.mesh.tenant), await _session_ids(self)
        return replace(self, request=request, before=before, earlier=earlier)

    async def call(self, at: Mesh) -> Answer:
        """The session, or the refusal."""
        spawn = at.spawn(**self.request) if self.parent is None else at.spawn_as(self.parent, **self.request)
        return await answer_of(spawn)

    async def call_victim(self) -> Answer:
        return await self.call(self.victim.mesh(self.mesh))

    async def call_healthy(self) -> Answer:
        return await self.call(self.mesh)

    async def sweep(self) -> None:
        await self.recovery.sweep(self.mesh.tenant)

    async def check(self, heard: Answer, steps: list[str]) -> None:
        """Check that repeats agree, and that one session is spawned, or all are undone.

        A spawn that was cut off gave its request_id back, and a repeat started over.
        """
        first = await self.call_healthy()
        again = await self.call_healthy()
        assert _content(again) == _content(first)
        if _is_final(heard):
            assert _content(first) == _content(heard)
        children = await self._spawned()
        failed = [child for child in children if child["state"] == "SPAWN_FAILED"]
        if isinstance(first, session_pb2.Session):
            [active] = [child for child in children if child["state"] == "ACTIVE"]
            assert (active["session_id"], active["request_id"]) == (
                first.session_id,
                self.request["request_id"],
            )
            await self._check_records(active, ["PROVISIONING", "RUN"], Counter(publish_session_start=1))
            made = MADE
        else:
            assert [child["request_id"] for child in failed].count(self.request["request_id"]) == 1
            made = {}
        assert len(children) == len(failed) + bool(made)
        # The first one is of the victim. Nothing says at which steps the others failed.
        for child in failed[:1]:
            jobs = await self.recovery.jobs(self.mesh.tenant, child["session_id"])
            published, unknown = jobs["publish_run_end"], jobs["publish_spawn_failure"]
            assert published in _allowed_publications(child, steps)
            assert published or unknown or "Hooks.before_spawn: answered" not in steps
            assert unknown <= 1
            await self._check_records(child, ["PROVISIONING", "SPAWN_FAILED"], jobs)
            assert jobs.total() == published + unknown
        expected = {name: count + made.get(name, 0) for name, count in self.before.items()}

        async def is_at_rest() -> bool:
            """The victim may undo a spawn by itself, which returns it to the queue."""
            await self.sweep()
            remains = await self.recovery.remains.of(self.mesh.tenant)
            return remains == expected and await self._spawns_in_queue() == 0

        await eventually(is_at_rest)

    async def _check_records(self, child: Any, kinds: list[str], jobs: Counter[str]) -> None:
        session_id = child["session_id"]
        assert await self.recovery.jobs(self.mesh.tenant, session_id) == jobs
        events = await self.recovery.events(self.mesh.tenant, session_id)
        assert [event["kind"] for event in events] == kinds

    async def _spawned(self) -> list[Any]:
        """Return the rows of the sessions that this request has spawned, the first one first."""
        query = (
            "select * from session.sessions where tenant_id = %s and not session_id = any (%s)"
            " order by create_time, session_id"
        )
        return await self.recovery.rows(query, self.mesh.tenant, self.earlier)

    async def _spawns_in_queue(self) -> int:
        return await self.recovery.remains.count(
            self.mesh.tenant, "session.jobs where kind in ('undo_spawn', 'clean_up_spawn')"
        )


def _content(answer: Answer) -> object:
    """Return the content of an answer, whichever replica gives it."""
    if isinstance(answer, MeshError):
        return answer.reason, answer.status, answer.message, answer.facts
    return answer.session_id, answer.latest_run.run_id


def _is_final(answer: Answer) -> bool:
    """Return whether every repeat gets this answer. After an outage a repeat starts over."""
    return not isinstance(answer, MeshError) or answer.status not in (Status.UNAVAILABLE, Status.ABORTED)


def _allowed_publications(child: Any, steps: list[str]) -> set[int]:
    """Return how often the failure may be published: once if the gate was known to have passed."""
    asked = "pass_gate: commit" in steps
    if "pass_gate: committed" in steps:
        return {1}
    if "SpawnUndo._fail: committed" not in steps:
        # Cut off between a commit and its answer, beside other steps. The victim may have undone it
        # later by itself, and knows what the gate answered.
        later = {1} if "Hooks.before_spawn: answered" in steps else set()
        return {int(asked and child["gate_passed"])} | later
    if asked:
        return {1}
    if "Hooks.before_spawn: answered" not in steps or child["failure"]["step"] == "gate":
        return {0}
    # Its time was over in the instant in which it heard of the gate; where others have undone it
    # before, nothing says which was first.
    return {1} if child["failure"]["step"] == "provision" else {0, 1}


async def open_spawning(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, file: str = GOOD, *, by_client: bool = False
) -> Spawning:
    """Spawns nothing yet but the parent, if there is one, whose run is held. The victim serves."""
    parent = None
    if not by_client:
        root = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
        parent = await mesh.claim(root.session_id)
    request = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment(file)]}
    before = await recovery.remains.of(mesh.tenant)
    recovery.tenants.add(mesh.tenant)
    await victim.idle()
    spawning = Spawning(mesh, victim, recovery, parent, request, before, [])
    return replace(spawning, earlier=await _session_ids(spawning))


async def _session_ids(spawning: Spawning) -> list[str]:
    query = "select session_id from session.sessions where tenant_id = %s"
    return [row["session_id"] for row in await spawning.recovery.rows(query, spawning.mesh.tenant)]
