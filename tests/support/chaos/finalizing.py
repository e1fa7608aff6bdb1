"""The finalization of a child's run that is interrupted, and its invariants."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, Entry
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.peers import Peer

from tests.support.chaos.recovery_checks import Answer, RecoveryChecks, answer_of
from tests.support.chaos.victim import Victim
from tests.support.session.drafting import draft, entries_of
from tests.support.session.harness import Mesh, attachment


@dataclass
class Finalizing:
    """An open session, its child with a file, and the child's held run with a draft."""

    mesh: Mesh
    victim: Victim
    recovery: RecoveryChecks
    transcript: Peer
    parent_id: str
    held: run_pb.ClaimedRun
    request: run_pb.FinalizeRunRequest

    @property
    def session_id(self) -> str:
        return self.held.session.session_id

    @property
    def run_id(self) -> str:
        return self.held.run.run_id

    async def call(self, at: Mesh) -> Answer:
        """The response, or the refusal."""
        return await answer_of(at.run(self.held, at.runs.FinalizeRun, self.request))

    async def call_victim(self) -> Answer:
        return await self.call(self.victim.mesh(self.mesh))

    async def call_healthy(self) -> Answer:
        return await self.call(self.mesh)

    def with_no_draft(self) -> "Finalizing":
        """Return the same, with a draft that was never appended."""
        request = run_pb.FinalizeRunRequest(
            epoch=self.held.run.epoch, draft_entry_id=new_id(IdKind.ENTRY), draft_text="43"
        )
        return replace(self, request=request)

    async def take_over(self, text: str) -> "Finalizing | None":
        """Claim the run for another runner with a draft of its own; None if the run has ended."""
        await self.recovery.expire_lease(self.mesh.tenant, self.run_id)
        if (await self.mesh.get(self.session_id)).latest_run.state == session_pb2.RUN_STATE_SUCCEEDED:
            return None
        held = await self.mesh.claim(self.session_id)
        assert held.run.epoch == self.held.run.epoch + 1
        request = await draft(self.transcript, held, text)
        return Finalizing(
            self.mesh, self.victim, self.recovery, self.transcript, self.parent_id, held, request
        )

    async def check(self) -> None:
        """Check that the run ended once with this draft, and its files are gone or kept."""
        query = "select * from session.runs where tenant_id = %s and session_id = %s"
        [run] = await self.recovery.rows(query, self.mesh.tenant, self.session_id)
        assert (run["state"], run["result_text"]) == ("SUCCEEDED", self.request.draft_text)
        assert run["draft_entry_id"] == self.request.draft_entry_id
        await self._check_announced()
        self._check_entries(await entries_of(self.transcript, self.held))
        keeps = self.held.session.cleanup == session_pb2.CLEANUP_KEEP
        jobs = await self.recovery.jobs(self.mesh.tenant, self.session_id)
        once = Counter(
            publish_session_start=1, publish_run_end=1, release_transcript=1, publish_session_end=1
        )
        assert jobs == once if keeps else once + Counter(release_attachments=1)
        await self.recovery.work()
        remains = await self.recovery.remains.of(self.mesh.tenant)
        assert (remains["files"], remains["objects"]) == ((1, 1) if keeps else (0, 0))

    async def _check_announced(self) -> None:
        tenant = self.mesh.tenant
        events = [
            (event["kind"], event["run_state"])
            for event in await self.recovery.events(tenant, self.session_id)
        ]
        assert events.count(("RUN", "SUCCEEDED")) == 1
        assert [kind for kind, _ in events].count("CLOSED") == 1
        heard = await self.recovery.events(tenant, self.parent_id)
        assert [event["kind"] for event in heard].count("CHILD_ANNOUNCED") == 1
        query = "select * from session.inbox_messages where tenant_id = %s and session_id = %s"
        [message] = await self.recovery.rows(query, tenant, self.parent_id)
        assert (message["child_session_id"], message["child_run_state"]) == (self.session_id, "SUCCEEDED")
        assert self.request.draft_text in message["text"]

    def _check_entries(self, entries: list[Entry]) -> None:
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        labels = [entry.body.label for entry in entries if entry.body.HasField("label")]
        newest = {label.entry_id: label.kind for label in labels}
        assert [entry_id for entry_id, kind in newest.items() if kind == LABEL_KIND_FINAL] == [
            self.request.draft_entry_id
        ]
        assert len({(label.entry_id, label.kind) for label in labels}) == len(labels)


def outcome(answer: Answer) -> str:
    """Return the name of the outcome, or the reason of the refusal."""
    if isinstance(answer, MeshError):
        return answer.reason.value
    return str(answer.WhichOneof("outcome"))


async def open_finalizing(
    mesh: Mesh,
    victim: Victim,
    recovery: RecoveryChecks,
    transcript: Peer,
    cleanup: "session_pb2.Cleanup.ValueType" = session_pb2.CLEANUP_DELETE,
    **fields: Any,
) -> Finalizing:
    """The child's run is held and has a draft; its parent waits for messages. The victim serves."""
    parent = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    child = await mesh.spawn(
        parent_session_id=parent.session_id, attachments=[attachment()], cleanup=cleanup, **fields
    )
    held = await mesh.claim(child.session_id)
    request = await draft(transcript, held, "42")
    recovery.tenants.add(mesh.tenant)
    await victim.serving()
    return Finalizing(mesh, victim, recovery, transcript, parent.session_id, held, request)
