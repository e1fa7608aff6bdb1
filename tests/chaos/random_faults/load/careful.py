"""Clients whose agents make calls that need an approval, and people who decide on these calls."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as service_pb
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub

from tests.chaos.random_faults.load.calls import Client

CAREFUL = "careful"
"""The agent whose calls need an approval, and the label of its sessions."""
CAREFUL_TOOL = "write_file"
_KILLED, _INTERRUPTED, _NOT_AWAITED = 0.1, 0.2, 0.5
"""A number from 0 to 1 below the first kills a careful session, and one below the second interrupts
its run. The client does not wait for the end of a session below the third.
"""
_LEFT_FOR_LATER = 0.3
_DECIDED_BY_TWO = 0.5
_REPEATED = 0.2
_APPROVED, _EDITED = 0.4, 0.7
"""A number from 0 to 1 below the first approves the call, and one below the second edits it too."""


async def ask_steadily(client: Client) -> None:
    """Spawn sessions whose calls need an approval. Wait for some, and kill and interrupt some."""
    while not client.stop.is_set():
        mark = f"{client.random.getrandbits(64):x}"
        written = {"path": f"note-{mark}.txt", "content": f"Written as asked for: {mark}"}
        task = f"{CAREFUL_TOOL} {json.dumps(written)}"
        drawn = client.random.random()
        if session_id := await client.spawn(client.spawn_request(task, agent_id=CAREFUL, label=CAREFUL)):
            if drawn < _INTERRUPTED:
                await client.pause(0.0, 3.0)
                await (client.kill if drawn < _KILLED else client.interrupt)(session_id)
            elif drawn >= _NOT_AWAITED:
                await client.wait(session_id)
        await client.pause(0.2, 1.0)


@dataclass(frozen=True, slots=True)
class Person:
    """A client whose token has a subject of its own."""

    name: str
    client: Client

    async def pending(self) -> Sequence[pb.Approval]:
        """Return approvals that wait; none if the service does not answer."""
        request = service_pb.ListApprovalsRequest(state=pb.APPROVAL_STATE_PENDING)
        stub = ApprovalServiceStub(self.client.mesh.service("session").channel)
        _, answer = await self.client.call("list", stub.ListApprovals, request)
        return answer.approvals if answer is not None else ()

    async def decide(self, approval_id: str) -> None:
        """Decide at random, and repeat the decision until it is answered, sometimes once more."""
        await self.client.pause(0.0, 0.05)
        request = self._decision(approval_id)
        is_denied = request.HasField("deny")
        stub = ApprovalServiceStub(self.client.mesh.service("session").channel)
        while True:
            await self.client.insist(
                "decide",
                stub.DecideApproval,
                request,
                approval_id=approval_id,
                state="DENIED" if is_denied else "APPROVED",
                decided_by=self.name,
                edited_arguments_json=request.approve.arguments_json,
                text=request.deny.reason,
            )
            if self.client.random.random() >= _REPEATED:
                return

    def _decision(self, approval_id: str) -> service_pb.DecideApprovalRequest:
        drawn, mark = self.client.random.random(), f"{self.client.random.getrandbits(32):x}"
        request = service_pb.DecideApprovalRequest(approval_id=approval_id)
        if drawn < _APPROVED:
            request.approve.SetInParent()
        elif drawn < _EDITED:
            edited = {"path": f"{self.name}-{mark}.txt", "content": f"Edited by {self.name}: {mark}"}
            request.approve.arguments_json = json.dumps(edited)
        else:
            request.deny.reason = f"{self.name} denies it: {mark}."
        return request


async def decide_steadily(people: Sequence[Person]) -> None:
    """Decide on the pending approvals of a tenant again and again. It never returns."""
    while True:
        await people[0].client.pause(0.3, 1.5)
        approvals = await people[0].pending()
        await asyncio.gather(*(_decide(people, approval.approval_id) for approval in approvals))


async def _decide(people: Sequence[Person], approval_id: str) -> None:
    random = people[0].client.random
    if random.random() < _LEFT_FOR_LATER:
        return
    chosen = people if random.random() < _DECIDED_BY_TWO else [random.choice(people)]
    await asyncio.gather(*(person.decide(approval_id) for person in chosen))
