"""The services of a mesh in memory: handlers by the names of their RPCs."""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from spawnmesh.session.v1 import approval_pb2, budget_pb2, session_pb2
from spawnmesh.session.v1 import approval_service_pb2 as approval_rpc
from spawnmesh.session.v1 import session_service_pb2 as rpc
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_rpc
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1 import search_service_pb2 as search_rpc
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.entries import entry_view
from spawnmesh_client.fake_agents import DEFAULT_AGENT, FakeAgents
from spawnmesh_client.fake_approvals import decide, is_wanted
from spawnmesh_client.fake_budgets import FakeBudgets, usage_of
from spawnmesh_client.fake_files import FakeFiles
from spawnmesh_client.fake_filter import accepts
from spawnmesh_client.fake_live import WatchedFamily
from spawnmesh_client.fake_operations import FakeOperations
from spawnmesh_client.fake_records import Outcome, SessionRecord, now
from spawnmesh_client.fake_refusals import id_reused, run_ended, run_state, session_state
from spawnmesh_client.fake_runs import FakeRuns
from spawnmesh_client.fake_schedules import FakeSchedules
from spawnmesh_client.fake_transcripts import FakeTranscripts
from spawnmesh_client.fake_webhooks import FakeWebhooks

_POLL_SECONDS = 0.01


class FakeServices(FakeFiles):
    """Answer calls as the services do. A queued run runs when a later call looks at its session."""

    def __init__(self, *, moves_payloads: bool = False) -> None:
        super().__init__(self._looked_at)
        self.script: deque[Outcome] = deque()
        self.refusals: deque[MeshError] = deque()
        self.webhooks = FakeWebhooks(self._every_record)
        self._agents = FakeAgents()
        self.schedules = FakeSchedules(self.SpawnSession, self._agents)
        self._budgets = FakeBudgets(self.records)
        self.runs = FakeRuns(self.records, self._budgets, self._agents.get, self.published)
        self.transcripts = FakeTranscripts(self._looked_at)
        self.operations = FakeOperations(self._looked_at, self._every_record, moves_payloads=moves_payloads)
        self._requests: dict[str, tuple[bytes, str]] = {}
        self._deleted: set[str] = set()

    async def SpawnSession(self, request: rpc.SpawnSessionRequest) -> rpc.SpawnSessionResponse:
        payload = request.SerializeToString(deterministic=True)
        known, session_id = self._requests.get(request.request_id, (payload, ""))
        if known != payload:
            raise id_reused(request.request_id)
        if session_id:
            return rpc.SpawnSessionResponse(session=self._record(session_id).session)
        self._refuse()
        agent = self._agents.get(request.agent_id or DEFAULT_AGENT)
        if request.HasField("fork") and request.context == session_pb2.CONTEXT_MODE_ISOLATED:
            raise invalid("context", "is ISOLATED, and `fork` names what to copy")
        is_fork = request.HasField("fork") or request.context == session_pb2.CONTEXT_MODE_FORK
        if source := request.fork.session_id:
            self._looked_at(source)
        elif is_fork and not request.parent_session_id:
            raise MeshError(Reason.FORK_WITHOUT_PARENT, "context FORK copies from a parent")
        record = self._new_record(request, agent)
        self._requests[request.request_id] = payload, record.session.session_id
        self.records[record.session.session_id] = record
        if parent := self.records.get(request.parent_session_id):
            event = parent.add_event(session_pb2.SESSION_EVENT_KIND_CHILD_SPAWNED)
            event.child_session_id, event.detail = record.session.session_id, agent.agent_id
        record.begin()
        return rpc.SpawnSessionResponse(session=record.session)

    async def GetSession(self, request: rpc.GetSessionRequest) -> rpc.GetSessionResponse:
        return rpc.GetSessionResponse(session=self._looked_at(request.session_id).session)

    async def ListSessions(self, request: rpc.ListSessionsRequest) -> rpc.ListSessionsResponse:
        found = [
            self._looked_at(session_id).session
            for session_id, record in reversed(self.records.items())
            if accepts(request.filter, record.session)
            and (request.include_archived or not record.session.HasField("archive_time"))
        ]
        is_full = request.view == session_pb2.SESSION_VIEW_FULL
        return rpc.ListSessionsResponse(sessions=found if is_full else map(_basic, found))

    async def WaitSession(self, request: rpc.WaitSessionRequest) -> rpc.WaitSessionResponse:
        give_up = monotonic_seconds() + request.timeout.ToNanoseconds() / 1e9
        while True:
            record = self._looked_at(request.session_id)
            done = record.is_terminal or not record.is_live
            if done or monotonic_seconds() >= give_up:
                return rpc.WaitSessionResponse(session=record.session, done=done)
            await asyncio.sleep(_POLL_SECONDS)

    def WatchSession(self, request: rpc.WatchSessionRequest) -> AsyncIterator[rpc.WatchSessionResponse]:
        return WatchedFamily(request, self._looked_at).messages()

    async def SendMessage(self, request: rpc.SendMessageRequest) -> rpc.SendMessageResponse:
        return rpc.SendMessageResponse(run=self._sent(request, ""))

    async def InterruptRun(self, request: rpc.InterruptRunRequest) -> rpc.InterruptRunResponse:
        if request.text:
            if not request.text.strip():
                raise MeshError(Reason.INVALID_REQUEST, "text has nothing but white space")
            if not request.request_id:
                raise MeshError(Reason.INVALID_REQUEST, "a text needs a request_id")
            return rpc.InterruptRunResponse(run=self._sent(request, request.run_id))
        record = self._looked_at(request.session_id)
        latest = record.session.latest_run
        if record.is_live and request.run_id in ("", latest.run_id):
            if record.worker_epoch:  # It ends the run itself.
                latest.interrupt_time.CopyFrom(now())
            else:
                record.interrupt()
        return rpc.InterruptRunResponse(run=record.run(request.run_id or latest.run_id))

    async def KillSession(self, request: rpc.KillSessionRequest) -> rpc.KillSessionResponse:
        killed = sum(record.kill() for record in self._family(request.session_id))
        return rpc.KillSessionResponse(killed_run_count=killed)

    async def ArchiveSession(self, request: rpc.ArchiveSessionRequest) -> rpc.ArchiveSessionResponse:
        family = self._family(request.session_id)
        for record in family:
            if record.is_live:
                run = record.session.latest_run
                raise MeshError(
                    Reason.RUN_STATE,
                    f"session {run.session_id} has a live run; kill it first, or wait for its end",
                    facts={"session_id": run.session_id, "run_id": run.run_id, "state": run_state(run)},
                )
        fresh = [record for record in family if not record.session.HasField("archive_time")]
        for record in fresh:
            record.close()
            record.session.archive_time.CopyFrom(now())
        return rpc.ArchiveSessionResponse(session=family[0].session, archived_session_count=len(fresh))

    async def DeleteSession(self, request: rpc.DeleteSessionRequest) -> rpc.DeleteSessionResponse:
        if request.session_id in self._deleted:
            return rpc.DeleteSessionResponse()
        family = self._family(request.session_id)
        killed = sum(record.kill() for record in family)
        for record in family:
            self._deleted.add(record.session.session_id)
            del self.records[record.session.session_id]
        return rpc.DeleteSessionResponse(deleted_session_count=len(family), killed_run_count=killed)

    async def SearchEntries(self, request: Any) -> search_rpc.SearchEntriesResponse:
        words = [rf"(?i)\b{re.escape(word)}\b" for word in request.words.split()]
        wanted = [re.compile(pattern) for pattern in words or [request.pattern]]
        first = self._looked_at(request.session_id)
        answer = search_rpc.SearchEntriesResponse()
        for record in self._family(request.session_id) if request.with_descendants else [first]:
            for entry in reversed(record.entries):
                text = entry_view(entry).text
                if text and all(one.search(text) for one in wanted):
                    answer.hits.add(
                        session_id=record.session.session_id,
                        entry_id=entry.entry_id,
                        seq=entry.seq,
                        create_time=entry.create_time,
                        snippet=text[:200],
                    )
        del answer.hits[request.page_size or 50 :]
        return answer

    async def UpdateAgent(self, request: tenant_rpc.UpdateAgentRequest) -> tenant_rpc.UpdateAgentResponse:
        return tenant_rpc.UpdateAgentResponse(agent=self._agents.update(request))

    async def GetAgent(self, request: tenant_rpc.GetAgentRequest) -> tenant_rpc.GetAgentResponse:
        return tenant_rpc.GetAgentResponse(agent=self._agents.get(request.agent_id))

    async def ListAgents(self, request: tenant_rpc.ListAgentsRequest) -> tenant_rpc.ListAgentsResponse:
        return tenant_rpc.ListAgentsResponse(agents=self._agents.all())

    async def DeleteAgent(self, request: tenant_rpc.DeleteAgentRequest) -> tenant_rpc.DeleteAgentResponse:
        self._agents.delete(request.agent_id, request.etag)
        return tenant_rpc.DeleteAgentResponse()

    async def ListApprovals(
        self, request: approval_rpc.ListApprovalsRequest
    ) -> approval_rpc.ListApprovalsResponse:
        wanted = request.session_id
        family = self._family(wanted) if wanted in self.records else []
        found = [
            approval
            for record in (family if wanted else list(self.records.values()))
            for approval in self._looked_at(record.session.session_id).approvals
            if is_wanted(approval, request)
        ]
        found.sort(key=lambda approval: approval.create_time.ToNanoseconds())
        return approval_rpc.ListApprovalsResponse(approvals=found)

    async def GetApproval(self, request: approval_rpc.GetApprovalRequest) -> approval_rpc.GetApprovalResponse:
        _, approval = self._approval(request.approval_id)
        return approval_rpc.GetApprovalResponse(approval=approval)

    async def DecideApproval(
        self, request: approval_rpc.DecideApprovalRequest
    ) -> approval_rpc.DecideApprovalResponse:
        record, approval = self._approval(request.approval_id)
        decide(record, approval, request)
        return approval_rpc.DecideApprovalResponse(approval=approval, run=record.run(approval.run_id))

    async def GetSessionUsage(
        self, request: budget_pb2.GetSessionUsageRequest
    ) -> budget_pb2.GetSessionUsageResponse:
        family = [self._looked_at(one.session.session_id) for one in self._family(request.session_id)]
        return budget_pb2.GetSessionUsageResponse(
            session=usage_of(family[:1]),
            family=usage_of(family),
            budgets=self._budgets.shared(family[0].session),
        )

    async def UpdateBudget(self, request: budget_pb2.UpdateBudgetRequest) -> budget_pb2.UpdateBudgetResponse:
        record = self._looked_at(request.session_id)
        return budget_pb2.UpdateBudgetResponse(budget=self._budgets.update(record, request))

    def end_held(self, session_id: str, outcome: Outcome) -> None:
        """End the held run of the session. Raises ValueError if it has none."""
        record = self._looked_at(session_id)
        if not record.held:
            raise ValueError(f"{session_id} has no run that is held")
        self._end(record, outcome)

    def _looked_at(self, session_id: str) -> SessionRecord:
        """Return the record after its queued run, if any, has run as scripted."""
        record = self._record(session_id)
        record.expire()
        is_waiting = record.held or record.pending or record.waits_for_budget
        if record.is_live and not is_waiting and not self.runs.waits_for_worker(record):
            record.start_run()
            while self._budgets.admits_call(record):
                if not self._take_step(record, self._next_outcome()):
                    break
        return record

    def _every_record(self) -> Iterator[SessionRecord]:
        """Yield the records after their queued runs."""
        for session_id in list(self.records):
            yield self._looked_at(session_id)

    def _take_step(self, record: SessionRecord, outcome: Outcome) -> bool:
        """Do what the next model call of the run says. Return True if the run then calls again."""
        if outcome.files:
            record.publish(outcome.files)
            return True
        if outcome.used is not None:
            self._budgets.use(record, outcome.used)
            return True
        if outcome.approval is not None:
            record.wait_for_person(outcome)
        elif outcome.is_held:
            record.held = True
        else:
            self._end(record, outcome)
        return False

    def _end(self, record: SessionRecord, outcome: Outcome) -> None:
        """End the run, and count the tokens of its answer."""
        usage = record.session.latest_run.usage
        before = usage.input_token_count + usage.output_token_count
        record.end_run(outcome)
        tokens = usage.input_token_count + usage.output_token_count - before
        self._budgets.count(record, tokens=tokens)

    def _sent(
        self, request: rpc.SendMessageRequest | rpc.InterruptRunRequest, run_id: str
    ) -> session_pb2.Run:
        """Put the message into the inbox, once for each request_id, and return the run that reads
        it. Raises RUN_STATE if `run_id` names another run than the live one.
        """
        record = self._looked_at(request.session_id)
        known = record.sent.get(request.request_id)
        if known is not None and known != request.text:
            raise id_reused(request.request_id)
        if known is None:
            self._refuse()
            session = record.session
            if record.is_terminal:
                state = session_state(record.session)
                raise MeshError(
                    Reason.SESSION_CLOSED,
                    f"session {session.session_id} is {state} and takes no more messages",
                    facts={"session_id": session.session_id, "state": state},
                )
            if run_id and not (record.is_live and run_id == session.latest_run.run_id):
                raise run_ended(record.run(run_id))
            record.sent[request.request_id] = request.text
            record.texts.append(request.text)
            if not record.is_live:
                record.queue_run()
            elif isinstance(request, rpc.InterruptRunRequest):
                record.is_urgent = record.worker_epoch > 0
                if record.pending:
                    record.resume(approval_pb2.APPROVAL_STATE_WITHDRAWN)
        return record.session.latest_run

    def _record(self, session_id: str) -> SessionRecord:
        if session_id not in self.records:
            raise not_found("session", session_id)
        return self.records[session_id]

    def _approval(self, approval_id: str) -> tuple[SessionRecord, approval_pb2.Approval]:
        for record in self.records.values():
            for approval in record.approvals:
                if approval.approval_id == approval_id:
                    record.expire()
                    return record, approval
        raise not_found("approval", approval_id)

    def _family(self, session_id: str) -> list[SessionRecord]:
        """Return the session and its descendants, parents first."""
        family = [self._record(session_id)]
        for parent in family:
            family += [
                record
                for record in self.records.values()
                if record.session.parent_session_id == parent.session.session_id
            ]
        return family

    def _new_record(self, request: rpc.SpawnSessionRequest, agent: AgentProfile) -> SessionRecord:
        depth = 0
        if request.parent_session_id:
            parent = self._record(request.parent_session_id)
            depth = parent.session.depth + 1
            if parent.is_terminal:
                raise MeshError(
                    Reason.SESSION_CLOSED,
                    "the parent session is not active, so it cannot spawn",
                    facts={"session_id": request.parent_session_id, "state": session_state(parent.session)},
                )
        session = session_pb2.Session(
            session_id=new_id(IdKind.SESSION), state=session_pb2.SESSION_STATE_PROVISIONING,
            agent_id=agent.agent_id, agent_version=agent.version, label=request.label,
            parent_session_id=request.parent_session_id,
            depth=depth, mode=request.mode or session_pb2.SESSION_MODE_RUN,
            context=_context_of(request),
            cleanup=request.cleanup or session_pb2.CLEANUP_DELETE,
            runtime=request.runtime or session_pb2.RUNTIME_SUBAGENT,
            thinking=request.thinking, create_time=now(), trace_id=secrets.token_hex(16),
            metadata=request.metadata,
        )  # fmt: skip
        if request.HasField("fork"):
            session.fork.session_id = request.fork.session_id or request.parent_session_id
            session.fork.seq = request.fork.seq
        record = SessionRecord(session, request, [], [request.task])
        self._budgets.open(request, record)
        record.files = self.attach(request, session)
        return record

    def _next_outcome(self) -> Outcome:
        return self.script.popleft() if self.script else Outcome(lambda _: "done")

    def _refuse(self) -> None:
        if self.refusals:
            raise self.refusals.popleft()


def _basic(session: session_pb2.Session) -> session_pb2.Session:
    """Return the session without the text of its result and the names of its files."""
    basic = session_pb2.Session()
    basic.CopyFrom(session)
    if basic.HasField("latest_run"):
        basic.latest_run.ClearField("result_text")
    if basic.HasField("receipt"):
        basic.receipt.ClearField("files")
    return basic


def _context_of(request: rpc.SpawnSessionRequest) -> "session_pb2.ContextMode.ValueType":
    default = session_pb2.CONTEXT_MODE_FORK if request.HasField("fork") else session_pb2.CONTEXT_MODE_ISOLATED
    return request.context or default
