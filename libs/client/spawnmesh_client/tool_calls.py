"""The calls of a model's answer, made by the tools of a worker."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT, ContentBlock, Message, Text, ToolCall
from spawnmesh.hook.v1 import run_hook_service_pb2 as hook_rpc
from spawnmesh.hook.v1.event_pb2 import BeforeToolCallEvent
from spawnmesh.session.v1 import approval_pb2
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh_core.call_arguments import ArgumentsUnreadable, arguments_of, is_unredacted, with_arguments
from spawnmesh_core.cancellation import cut_short
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, Unavailable, is_transient, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_core.spawn_calls import is_spawn_tool
from spawnmesh_core.spawn_redaction import redact_arguments

from spawnmesh_client.repeated_calls import call_again
from spawnmesh_client.run_events import approval_by, decided_call
from spawnmesh_client.run_hooks import DISPATCH_SECONDS, RunHooks
from spawnmesh_client.run_stops import RunGivenUp, TurnCut
from spawnmesh_client.tools import CurrentCall, Tool, ToolError
from spawnmesh_client.unfinished_turn import OpenCall

if TYPE_CHECKING:  # The context of a run makes the calls.
    from spawnmesh_client.run_context import RunContext

_MAX_ARGUMENTS_BYTES = 1024 * 1024  # Of the contract: no gate is shown more.
_MAX_APPROVAL_REASON = 4096
_LOST = (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST, Reason.TOKEN_REVOKED)
_CANNOT_WAIT = (Reason.SECRET_NOT_KEPT, Reason.INVALID_REQUEST, Reason.RUN_QUEUE_FULL)
_NEVER_KEPT = (Reason.ATTACHMENT_CONTENT_IS_MARKER, Reason.INVALID_REQUEST)
_log = logging.getLogger("spawnmesh_client.tools")


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of a call, as the model reads it. `reason` is empty if the call succeeded."""

    text: str
    reason: str = ""
    made: ToolCall | None = None
    """The call as it was made, if plugins or people changed it."""


def _refused(reason: str, message: str) -> CallOutcome:
    return CallOutcome(f"{reason}: {message}", reason)


_NOT_MADE = _refused("INTERRUPTED", "you were interrupted before this call, and it was not made")
_CUT_SHORT = _refused(
    "INTERRUPTED", "you were interrupted during this call; make it again if it is still needed"
)
_MAYBE_DONE = _refused(
    "INTERRUPTED", "you were interrupted during this call, and it may or may not have been done"
)
_UNKNOWN = _refused(
    "OUTCOME_UNKNOWN", "the worker was replaced during the call; it may or may not have been done"
)
_LOST_CONTENT = _refused(
    "OUTCOME_UNKNOWN",
    "the worker was replaced during the call, and the secret or the file in this call is lost with it;"
    " the call may or may not have been done",
)


@dataclass(slots=True)
class CallMaker:
    """Make calls one after the other, and store the result of each before the next one.

    Plugins judge each call, and observe its outcome, as the hooks say.
    """

    run: "RunContext"
    tools: Mapping[str, Tool]
    hooks: RunHooks

    async def make(self, calls: Sequence[OpenCall]) -> None:
        """Make the calls of a new answer.

        After an interrupt, the results say which calls were cut short and which were not made.
        Raises TurnCut then, RunGivenUp when a person must decide first, and MeshError when the run
        is lost.
        """
        await self._each([(call, False) for call in calls])

    async def finish(self, calls: Sequence[OpenCall]) -> None:
        """Make the calls that another worker left open, or this one before it gave the run up.

        Only the first one can have been begun. One that must not be repeated has an unknown
        outcome instead. Raises as `make`.
        """
        await self._each([(call, number == 0) for number, call in enumerate(calls)], was_left=True)

    async def _each(self, calls: Sequence[tuple[OpenCall, bool]], *, was_left: bool = False) -> None:
        is_withdrawn = False
        for number, (call, was_begun) in enumerate(calls):
            begin = monotonic_seconds()
            try:
                taken = await self._decision(call) if was_left else None
                if taken is not None:
                    outcome = await self._decided(call, taken)
                    is_withdrawn |= taken.approval.state == approval_pb2.APPROVAL_STATE_WITHDRAWN
                elif is_withdrawn:
                    outcome = _NOT_MADE
                else:
                    outcome = await self._made(call, was_left=was_left, was_begun=was_begun)
            except asyncio.CancelledError:
                if self.run.is_interrupted:
                    await self._store(call, self._cut(call))
                    for later, _ in calls[number + 1 :]:
                        await self._store(later, _NOT_MADE)
                raise
            await self._store(call, outcome)
            took = timedelta(seconds=monotonic_seconds() - begin)
            await self.hooks.publish_outcome(call, outcome.text, outcome.reason, took)
        if self.run.has_urgent_message:
            raise TurnCut

    def _cut(self, call: OpenCall) -> CallOutcome:
        tool = self.tools.get(call.call.name)
        return _CUT_SHORT if tool is None or tool.idempotent else _MAYBE_DONE

    async def _made(
        self,
        call: OpenCall,
        *,
        was_left: bool = False,
        was_begun: bool = False,
        approved: ToolCall | None = None,
    ) -> CallOutcome:
        """Make the call after the plugins have allowed it, or as a person `approved` it."""
        tool = self.tools.get(call.call.name)
        if tool is None:
            names = ", ".join(self.tools) or "none"
            return _refused("UNKNOWN_TOOL", f"there is no such tool; yours are: {names}")
        if was_begun and not tool.idempotent:
            return _UNKNOWN
        if was_left and not is_unredacted(call.call.block_json):
            return _LOST_CONTENT
        if self.run.has_urgent_message:
            return self._cut(call) if was_begun else _NOT_MADE
        try:
            judged = approved or await self._judged(call, tool)
        except TurnCut:
            return _NOT_MADE
        if isinstance(judged, CallOutcome):
            return judged
        self.run.turns.has_final_effects |= not tool.idempotent
        try:
            outcome = await cut_short(self._called(call, tool, judged), self.run.urgent, TurnCut)
        except TurnCut:
            return self._cut(call)
        return outcome if judged is call.call else CallOutcome(outcome.text, outcome.reason, judged)

    async def _called(self, call: OpenCall, tool: Tool, made: ToolCall) -> CallOutcome:
        """Call the tool. An error becomes the outcome.

        Raised are only RunGivenUp, the loss of the run, a budget that is used up, and for an
        idempotent tool an outage: the call is made again by a later attempt of the run.
        """
        current = CurrentCall(
            self.run, call.call.tool_call_id, f"call:{call.answer_entry_id}:{call.index}"
        )  # fmt: skip
        try:
            return CallOutcome(await tool.call(tool.read(arguments_of(made.block_json)), current))
        except ArgumentsUnreadable as error:
            return _refused("INVALID_ARGUMENTS", str(error))
        except ToolError as error:
            return CallOutcome(str(error), error.reason)
        except RunGivenUp:
            raise
        except MeshError as error:
            is_outage = isinstance(error, Unavailable) or is_transient(error)
            if refused_with(error, *_LOST, Reason.SESSION_BUDGET_EXCEEDED) or (is_outage and tool.idempotent):
                raise
            return _refused(error.reason.value, error.message)
        except Exception:
            if self.run.is_given_up:
                raise
            _log.exception("the tool %s failed", tool.name)
            return _refused(
                "TOOL_FAILED", "the tool failed by a defect of its own; the same call again will not help"
            )

    async def _store(self, call: OpenCall, outcome: CallOutcome) -> None:
        message = Message(
            role=ROLE_TOOL_RESULT,
            content=[ContentBlock(text=Text(text=outcome.text))],
            tool_call_id=call.call.tool_call_id,
            tool_name=call.call.name,
            is_error=bool(outcome.reason),
        )
        if outcome.made is not None:
            message.content.add(tool_call=outcome.made)
        key = f"result:{call.answer_entry_id}:{call.index}"
        try:
            await self.run.append_entries(key, EntryBody(message=message))
        except MeshError as error:
            if outcome.made is None or error.reason not in _NEVER_KEPT:
                raise
            # The model then reads its own call, with the outcome of the rewritten one.
            del message.content[-1]
            await self.run.append_entries(key, EntryBody(message=message))

    async def _judged(self, call: OpenCall, tool: Tool) -> ToolCall | CallOutcome:
        """Return the call as plugins allow it, or the outcome of one that is not made.

        Raises RunGivenUp for a call that a person must approve, and TurnCut.
        """
        try:
            arguments = arguments_of(call.call.block_json)
        except ArgumentsUnreadable as error:
            return _refused("INVALID_ARGUMENTS", str(error))
        allowed, reasons, wanted_by = call.call, [self._policy_reason(tool)], tuple[str, ...]()
        if self.hooks.judges_calls:
            judged = await self._dispatched(call, arguments)
            if isinstance(judged, CallOutcome):
                return judged
            allowed, reason, wanted_by = judged
            reasons.append(reason)
        if wanted := "; ".join(filter(None, reasons)):
            self.run.run_events.add_decision(wanted_by, call_to_approve=decided_call(tool.name))
            return await self._ask(
                call, tool, allowed, wanted.encode()[:_MAX_APPROVAL_REASON].decode(errors="ignore")
            )
        return allowed

    async def _dispatched(
        self, call: OpenCall, arguments: object
    ) -> tuple[ToolCall, str, tuple[str, ...]] | CallOutcome:
        """Return the call as the plugins leave it, why plugins want an approval and which ones do,
        or the outcome of the call.
        """
        shown = _shown(call.call.name, arguments)
        event = BeforeToolCallEvent(
            session_id=self.run.session.session_id,
            run_id=self.run.run_id,
            agent_id=self.run.agent.agent_id,
            tool_name=call.call.name,
            tool_call_id=call.call.tool_call_id,
            arguments_json=json.dumps(shown),
        )
        if len(event.arguments_json) > _MAX_ARGUMENTS_BYTES:
            return _refused("INVALID_ARGUMENTS", "they are too large for a plugin that has to allow the call")
        request = hook_rpc.DispatchBeforeToolCallRequest(event=event)
        try:
            asking = self.hooks.call("DispatchBeforeToolCall", request, timeout_seconds=DISPATCH_SECONDS)
            answer = await cut_short(asking, self.run.urgent, TurnCut)
        except MeshError as error:
            if error.reason is not Reason.PLUGIN_FAILED or is_transient(error):
                raise
            return _refused(error.reason.value, error.message)
        report = self.run.run_events.add_decision
        if answer.decision.HasField("block"):
            report(answer.decided_by, blocked_call=decided_call(call.call.name))
            return _refused("BLOCKED", answer.decision.block.reason)
        made = call.call
        if answer.decision.HasField("rewrite"):
            try:
                rewritten = _restored(json.loads(answer.decision.rewrite.arguments_json), arguments, shown)
                if rewritten != arguments:
                    made = _with(made, rewritten, rewrittenBy=list(answer.rewritten_by))
                    report(answer.rewritten_by, rewritten_call=decided_call(call.call.name))
            except (ValueError, TypeError, RecursionError):
                names = ", ".join(answer.rewritten_by)
                return _refused(
                    Reason.PLUGIN_FAILED.value, f"the arguments that {names} gave the call cannot be read"
                )
        return made, answer.approval_reason, approval_by(answer)

    def _policy_reason(self, tool: Tool) -> str:
        for pattern in self.run.claimed.agent.approval.tools:
            if tool.name == pattern or (pattern.endswith("*") and tool.name.startswith(pattern[:-1])):
                return f"the agent's policy names {pattern}"
        return ""

    async def _ask(self, call: OpenCall, tool: Tool, made: ToolCall, reason: str) -> CallOutcome:
        """Give the run up until a person has decided. Return the refusal of a call that would be
        refused after the approval too, or that cannot be kept until then.
        """
        try:
            arguments = arguments_of(made.block_json)
            tool.read(arguments)
        except ArgumentsUnreadable as error:
            return _refused("INVALID_ARGUMENTS", str(error))
        except ToolError as error:
            return CallOutcome(str(error), error.reason)
        if _shown(tool.name, arguments) != arguments:
            return _refused(
                "APPROVAL_NOT_POSSIBLE",
                "a person must approve this call, and the content of a file is not kept until then;"
                " hand nothing over by content",
            )
        subject = approval_pb2.ToolCallSubject(
            tool_name=tool.name,
            arguments_json=json.dumps(arguments, ensure_ascii=False),
            parameters_json=tool.declaration.parameters_json,
        )
        policy = self.run.claimed.agent.approval
        request = approval_pb2.RequestApprovalRequest(
            epoch=self.run.claimed.run.epoch, call=_key(call), tool_call=subject, reason=reason,
            on_expiry=policy.on_expiry,
        )  # fmt: skip
        if policy.HasField("timeout"):
            request.timeout.CopyFrom(policy.timeout)
        await self.run.run_events.reported()
        try:
            await self._session("RequestApproval", request)
        except MeshError as error:
            if not refused_with(error, *_CANNOT_WAIT):
                raise
            return _refused(
                "APPROVAL_NOT_POSSIBLE",
                f"a person must approve this call, and it cannot wait: {error.message}",
            )
        self.run.is_given_up = True
        raise RunGivenUp

    async def _decision(self, call: OpenCall) -> approval_pb2.TakeDecisionResponse | None:
        """Return the decision on a call; None if no approval of it was requested."""
        if not self.run.claimed.approval_count:
            return None
        request = approval_pb2.TakeDecisionRequest(epoch=self.run.claimed.run.epoch, call=_key(call))
        taken: approval_pb2.TakeDecisionResponse = await self._session("TakeDecision", request)
        return taken if taken.HasField("approval") else None

    async def _decided(self, call: OpenCall, taken: approval_pb2.TakeDecisionResponse) -> CallOutcome:
        """Make a call as it was approved, at most once; no plugin is asked again."""
        approval = taken.approval
        if approval.state == approval_pb2.APPROVAL_STATE_DENIED:
            return _refused("DENIED", approval.text or "a person denied it and gave no reason")
        if approval.state == approval_pb2.APPROVAL_STATE_EXPIRED:
            return _refused("DENIED", "no person decided in time")
        if approval.state != approval_pb2.APPROVAL_STATE_APPROVED:
            return _refused(
                "INTERRUPTED", "you were interrupted while this waited for a person; it was not done"
            )
        if taken.was_begun:
            return _refused(
                "OUTCOME_UNKNOWN",
                "a person approved this call, and the worker was replaced during it: it may or may not"
                " have been done, and it is not made again",
            )
        approved = json.loads(approval.edited_arguments_json or approval.tool_call.arguments_json)
        try:
            asked = json.dumps(arguments_of(call.call.block_json), sort_keys=True)
        except ArgumentsUnreadable:  # The context left a long text of the call out.
            asked = ""
        if json.dumps(approved, sort_keys=True) == asked:
            return await self._made(call, approved=call.call)
        return await self._made(call, approved=_with(call.call, approved, approvedBy=approval.decided_by))

    async def _session(self, rpc: str, request: Any) -> Any:
        peer = self.run.mesh.wire.service("session")
        return await call_again(peer, getattr(RunServiceStub(peer.channel), rpc), request)


def _key(call: OpenCall) -> approval_pb2.CallKey:
    return approval_pb2.CallKey(answer_entry_id=call.answer_entry_id, index=call.index)


def _with(call: ToolCall, arguments: object, **more: object) -> ToolCall:
    block_json = with_arguments(call.block_json, arguments, **more)
    return ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=block_json)


def _shown(tool_name: str, arguments: object) -> object:
    """Return the arguments as the transcript keeps them: in a call that spawns, markers replace
    what is or may be the content of a file.
    """
    return json.loads(redact_arguments(json.dumps(arguments))) if is_spawn_tool(tool_name) else arguments


def _restored(rewritten: Any, arguments: object, shown: object) -> Any:
    """Return the arguments that a plugin gave, with every redacted value as it was."""
    if not (isinstance(rewritten, dict) and isinstance(arguments, dict) and isinstance(shown, dict)):
        return rewritten
    return rewritten | {name: value for name, value in arguments.items() if shown.get(name) != value}
