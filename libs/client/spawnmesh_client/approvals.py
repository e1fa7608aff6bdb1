"""The decisions of people on tool calls, and their answers to questions of agents."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from spawnmesh.session.v1 import approval_pb2
from spawnmesh.session.v1 import approval_service_pb2 as rpc
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub

from spawnmesh_client.approval_views import Approval, ToolCallSubject
from spawnmesh_client.pages import paged
from spawnmesh_client.view_of import number_of, view_of
from spawnmesh_client.wire import WireMesh


class Approvals:
    """`mesh.approvals`."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def list(
        self, *, state: str = "", session_id: str = "", agent_id: str = "", tool_name: str = ""
    ) -> AsyncIterator[Approval]:
        """Yield the tenant's approvals that fulfil all given conditions, oldest first.

        `state` is a word such as `ApprovalState.PENDING` or `"PENDING"`. A session stands for its
        descendants too. Raises ValueError for an unknown word.
        """
        number = number_of(state, approval_pb2.ApprovalState.DESCRIPTOR)
        request = rpc.ListApprovalsRequest(
            state=approval_pb2.ApprovalState.ValueType(number),
            session_id=session_id,
            agent_id=agent_id,
            tool_name=tool_name,
        )
        peer = self._wire.service("session")
        stub = ApprovalServiceStub(peer.channel)
        async for approval in paged(peer, stub.ListApprovals, request, "approvals"):
            yield approval_view(approval)

    async def get(self, approval_id: str) -> Approval:
        """Return one approval. Raises NotFound."""
        peer = self._wire.service("session")
        request = rpc.GetApprovalRequest(approval_id=approval_id)
        answer = await peer.unary(ApprovalServiceStub(peer.channel).GetApproval, request)
        return approval_view(answer.approval)

    async def approve(self, approval_id: str, arguments: Mapping[str, Any] | None = None) -> Approval:
        """Let the call be made, with other `arguments` if they are given. The run goes on.

        A repeat of the same decision changes nothing. Raises NotFound; FailedPrecondition
        APPROVAL_CLOSED if the approval was decided otherwise, if its time is over, or if its run
        has ended; InvalidRequest for a question, and for arguments that do not fit the schema of
        the tool; FailedPrecondition SECRET_NOT_KEPT for arguments with a secret that the tenant
        masks; and ValueError or TypeError for arguments that are no JSON.
        """
        text = "" if arguments is None else json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False)
        return await self._decide(approval_id, approve=rpc.Approve(arguments_json=text))

    async def deny(self, approval_id: str, reason: str = "") -> Approval:
        """Refuse the call, or refuse to answer. The model reads the reason, and the run goes on.

        Repeats and refusals are as for `approve`.
        """
        return await self._decide(approval_id, deny=rpc.DenyCall(reason=reason))

    async def answer(self, approval_id: str, text: str) -> Approval:
        """Answer a question. The model reads the text, and the run goes on.

        Raises InvalidRequest for a tool call, and for a text that is none of the choices. Repeats
        and other refusals are as for `approve`.
        """
        return await self._decide(approval_id, answer=rpc.Answer(text=text))

    async def _decide(self, approval_id: str, **decision: Any) -> Approval:
        peer = self._wire.service("session")
        request = rpc.DecideApprovalRequest(approval_id=approval_id, **decision)
        answer = await peer.unary(ApprovalServiceStub(peer.channel).DecideApproval, request)
        return approval_view(answer.approval)


def approval_view(approval: approval_pb2.Approval) -> Approval:
    """Return the view of an approval."""
    call = approval.tool_call
    subject = view_of(
        ToolCallSubject,
        call,
        arguments=_object_of(call.arguments_json),
        parameters=_object_of(call.parameters_json),
    )
    return view_of(
        Approval,
        approval,
        tool_call=subject if approval.HasField("tool_call") else None,
        edited_arguments=_object_of(approval.edited_arguments_json),
    )


def _object_of(text: str) -> Mapping[str, Any] | None:
    """Return the JSON object, or None for another text: one call must not end a list."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
