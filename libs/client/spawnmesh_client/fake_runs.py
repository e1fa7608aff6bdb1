"""The runs of a FakeMesh that workers claim, with the refusals of a mesh."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.hook.v1.run_hook_service_pb2 import ListActiveHooksResponse
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest, GenerateResponse
from spawnmesh.session.v1 import approval_pb2, budget_pb2, output_pb2, session_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.fake_budgets import FakeBudgets
from spawnmesh_client.fake_models import FakeModels
from spawnmesh_client.fake_records import FakeFile, Outcome, SessionRecord, now
from spawnmesh_client.fake_refusals import id_reused, run_state

_POLL_SECONDS = 0.01
_LEASE_SECONDS = 3600
_DAY_SECONDS = 86_400.0


class FakeRuns:
    """Answer the calls of workers. The token of a run is its id.

    While it `is_open`, the runs of sessions with the runtime EXTERNAL wait for a worker.
    """

    def __init__(
        self,
        records: Mapping[str, SessionRecord],
        budgets: FakeBudgets,
        agent: Callable[[str], AgentProfile],
        files: Callable[[output_pb2.PublishFilesRequest], Sequence[FakeFile]],
    ) -> None:
        self._records, self._budgets, self._agent, self._files = records, budgets, agent, files
        self.is_open = False
        self.models = FakeModels()
        self._read_counts: dict[str, int] = {}
        self._keys: dict[tuple[str, str, int], approval_pb2.Approval] = {}
        self._taken: set[str] = set()

    def waits_for_worker(self, record: SessionRecord) -> bool:
        """Return whether only a worker takes the next step of the session."""
        return record.worker_epoch > 0 or (
            self.is_open and record.session.runtime == session_pb2.RUNTIME_EXTERNAL
        )

    def record_of(self, token: str) -> SessionRecord | None:
        """Return the record of the run that has this token; None for the token of a client."""
        for record in self._records.values():
            if record.session.HasField("latest_run") and record.session.latest_run.run_id == token:
                return record
        return None

    async def ClaimRuns(self, request: pb.ClaimRunsRequest, _token: str) -> pb.ClaimRunsResponse:
        give_up = monotonic_seconds() + request.wait.ToTimedelta().total_seconds()
        while True:
            ready = [record for record in self._records.values() if self._is_ready(record, request.runtimes)]
            if ready or monotonic_seconds() >= give_up:
                claimed = map(self._claimed, ready[: request.max_run_count])
                return pb.ClaimRunsResponse(runs=claimed)
            await asyncio.sleep(_POLL_SECONDS)

    async def WatchRunChanges(
        self, _request: pb.WatchRunChangesRequest, _token: str
    ) -> AsyncIterator[pb.WatchRunChangesResponse]:
        known = self._states()
        while True:
            if known != (known := self._states()):
                yield pb.WatchRunChangesResponse()
            await asyncio.sleep(_POLL_SECONDS)

    def _states(self) -> set[tuple[str, int, int]]:
        records = [record for record in self._records.values() if record.first_epoch]
        return {
            (record.session.latest_run.run_id, record.session.latest_run.state, self._interrupt(record))
            for record in records
        }

    async def HeartbeatRun(self, request: pb.HeartbeatRunRequest, token: str) -> pb.HeartbeatRunResponse:
        record = self._held(token, request.epoch)
        return pb.HeartbeatRunResponse(
            pending_message_count=len(record.texts), interrupt=self._interrupt(record)
        )

    async def ListInbox(self, _request: pb.ListInboxRequest, token: str) -> pb.ListInboxResponse:
        record = self._held(token)
        first = self._read_counts.get(record.session.session_id, 0)
        messages = []
        for number, text in enumerate(record.texts, first):
            key = f"message:v1:{number}"
            messages.append(pb.InboxMessage(key=key, append_request_id=key, text=text, create_time=now()))
        return pb.ListInboxResponse(messages=messages)

    async def AcknowledgeInbox(
        self, request: pb.AcknowledgeInboxRequest, token: str
    ) -> pb.AcknowledgeInboxResponse:
        record = self._held(token, request.epoch)
        first = self._read_counts.get(record.session.session_id, 0)
        read = [key for key in request.keys if int(key.rpartition(":")[2]) >= first]
        record.read = [record.read, *record.texts[: len(read)]][-1]
        del record.texts[: len(read)]
        self._read_counts[record.session.session_id] = first + len(read)
        record.is_urgent = False
        return pb.AcknowledgeInboxResponse()

    async def FinalizeRun(self, request: pb.FinalizeRunRequest, token: str) -> pb.FinalizeRunResponse:
        record = self._held(token, request.epoch)
        run = record.session.latest_run
        if run.HasField("interrupt_time"):
            return pb.FinalizeRunResponse(interrupted=pb.Interrupted())
        if record.texts:
            return pb.FinalizeRunResponse(messages_pending=pb.MessagesPending(count=len(record.texts)))
        run.usage.CopyFrom(request.usage)
        record.accept(request.draft_entry_id, request.draft_text)
        return pb.FinalizeRunResponse(accepted=pb.Accepted(run=run))

    async def FailRun(self, request: pb.FailRunRequest, token: str) -> pb.FailRunResponse:
        record = self._held(token, request.epoch)
        record.session.latest_run.usage.CopyFrom(request.usage)
        record.end_run(Outcome(None, str(reason_of(request.reason)), request.message))
        return pb.FailRunResponse(run=record.session.latest_run)

    async def EndInterruptedRun(
        self, request: pb.EndInterruptedRunRequest, token: str
    ) -> pb.EndInterruptedRunResponse:
        record = self._held(token, request.epoch)
        record.session.latest_run.usage.CopyFrom(request.usage)
        record.interrupt()
        return pb.EndInterruptedRunResponse(run=record.session.latest_run)

    async def ReleaseRun(self, request: pb.ReleaseRunRequest, token: str) -> pb.ReleaseRunResponse:
        record = self._held(token, request.epoch)
        record.requeue()
        return pb.ReleaseRunResponse(run=record.session.latest_run)

    async def PublishFiles(
        self, request: output_pb2.PublishFilesRequest, token: str
    ) -> output_pb2.PublishFilesResponse:
        record, files = self._held(token, request.epoch), self._files(request)
        for output, known in record.outputs:
            if (output.run_id, output.request_id) == (token, request.request_id):
                if list(known) != list(files):
                    raise id_reused(request.request_id)
                return output_pb2.PublishFilesResponse(output_set=output)
        record.publish(files, request.request_id)
        return output_pb2.PublishFilesResponse(output_set=record.outputs[-1][0])

    async def AwaitBudget(
        self, request: budget_pb2.AwaitBudgetRequest, token: str
    ) -> budget_pb2.AwaitBudgetResponse:
        record = self._held(token, request.epoch)
        if self._budgets.is_used_up(record):
            record.session.latest_run.usage.CopyFrom(request.usage)
            record.worker_epoch = 0
            self._budgets.admits_call(record)
        return budget_pb2.AwaitBudgetResponse(run=record.session.latest_run)

    async def RequestApproval(
        self, request: approval_pb2.RequestApprovalRequest, token: str
    ) -> approval_pb2.RequestApprovalResponse:
        record = self._held(token, request.epoch)
        subject = approval_pb2.Approval(reason=request.reason, on_expiry=request.on_expiry)
        if request.HasField("tool_call"):
            subject.tool_call.CopyFrom(request.tool_call)
        else:
            subject.question.CopyFrom(request.question)
        seconds = request.timeout.ToTimedelta().total_seconds() or _DAY_SECONDS
        record.worker_epoch = 0
        record.wait_for_person(Outcome(approval=subject, approval_seconds=seconds))
        approval = record.approvals[-1]
        self._keys[token, request.call.answer_entry_id, request.call.index] = approval
        return approval_pb2.RequestApprovalResponse(approval=approval)

    async def TakeDecision(
        self, request: approval_pb2.TakeDecisionRequest, token: str
    ) -> approval_pb2.TakeDecisionResponse:
        self._held(token, request.epoch)
        approval = self._keys.get((token, request.call.answer_entry_id, request.call.index))
        if approval is None:
            return approval_pb2.TakeDecisionResponse()
        was_begun = approval.approval_id in self._taken
        self._taken.add(approval.approval_id)
        return approval_pb2.TakeDecisionResponse(approval=approval, was_begun=was_begun)

    async def ListActiveHooks(self, _request: Any, _token: str) -> ListActiveHooksResponse:
        return ListActiveHooksResponse()

    async def Generate(self, request: GenerateRequest, token: str) -> AsyncIterator[GenerateResponse]:
        record = self.record_of(token)
        if record is not None:
            if self._budgets.is_used_up(record):
                raise MeshError(
                    Reason.SESSION_BUDGET_EXCEEDED,
                    "a budget that the session shares is used up",
                    facts={"session_id": record.session.session_id},
                )
            self._budgets.count(record, calls=1)
        used = TokenUsage()
        async for answer in self.models.generate(request):
            for event in answer.events:
                used = event.completion.message.usage
            yield answer
        if record is not None:
            self._budgets.count(record, tokens=used.input_token_count + used.output_token_count)

    def _is_ready(self, record: SessionRecord, runtimes: Iterable[int]) -> bool:
        record.expire()
        is_queued = record.is_live and record.session.latest_run.state == session_pb2.RUN_STATE_QUEUED
        return is_queued and record.session.runtime in runtimes

    def _claimed(self, record: SessionRecord) -> pb.ClaimedRun:
        record.claim()
        run, agent = record.session.latest_run, self._agent(record.session.agent_id)
        models = [record.request.model, *agent.models] if record.request.model else agent.models
        claimed = pb.ClaimedRun(
            run=run, session=record.session, agent=agent, models=models, run_token=run.run_id,
            thinking=record.session.thinking or agent.thinking, first_epoch=record.first_epoch,
            pending_message_count=len(record.texts),
            approval_count=sum(one.run_id == run.run_id for one in record.approvals),
        )  # fmt: skip
        claimed.lease_ttl.FromSeconds(_LEASE_SECONDS)
        claimed.time_left.FromSeconds(_LEASE_SECONDS)
        return claimed

    def _held(self, token: str, epoch: int = 0) -> SessionRecord:
        """Return the record of the run that a worker holds. Raises RUN_LEASE_LOST."""
        record = self.record_of(token)
        if record is None or record.worker_epoch == 0 or epoch not in (0, record.worker_epoch):
            state = run_state(record.session.latest_run) if record is not None else "UNSPECIFIED"
            raise MeshError(
                Reason.RUN_LEASE_LOST,
                f"run {token} is {state}, or another runner has it",
                facts={"run_id": token, "state": state},
            )
        return record

    @staticmethod
    def _interrupt(record: SessionRecord) -> "pb.Interrupt.ValueType":
        if record.session.latest_run.HasField("interrupt_time") or not record.is_live:
            return pb.INTERRUPT_RUN
        return pb.INTERRUPT_TURN if record.is_urgent else pb.INTERRUPT_UNSPECIFIED
