"""The sessions of a mesh in memory: their runs, events and transcripts."""

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.attachment_blob.v1.attachment_pb2 import (
    SET_STATE_ATTACHED,
    SET_STATE_RELEASED,
    AttachmentFile,
    AttachmentSet,
)
from spawnmesh.content.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_USER,
    ContentBlock,
    Message,
    Role,
    Text,
)
from spawnmesh.session.v1 import approval_pb2, budget_pb2, session_pb2
from spawnmesh.session.v1.output_pb2 import OutputSet
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, Entry, EntryBody, Header, Label, SystemNote
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

_LIVE = (
    session_pb2.RUN_STATE_QUEUED,
    session_pb2.RUN_STATE_RUNNING,
    session_pb2.RUN_STATE_WAITING_APPROVAL,
    session_pb2.RUN_STATE_WAITING_BUDGET,
)
_END_STATES: "dict[str, session_pb2.RunState.ValueType]" = {
    Reason.KILLED: session_pb2.RUN_STATE_KILLED,
    Reason.INTERRUPTED: session_pb2.RUN_STATE_INTERRUPTED,
}
"""The state of a run that ended for this reason. For all others it is FAILED."""
_TERMINAL = (session_pb2.SESSION_STATE_CLOSED, session_pb2.SESSION_STATE_SPAWN_FAILED)


@dataclass(frozen=True, slots=True)
class FakeFile:
    """A file with its bytes."""

    name: str
    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The scripted end of a run: an answer, an error, or none yet.

    With an `approval`, the run waits for a person first, and goes on with the next outcome. With
    `files`, it publishes them, and goes on. With `used`, it has used this much, and goes on.
    """

    answer: Callable[[str], str] | None = None
    error_reason: str = ""
    error_message: str = ""
    approval: approval_pb2.Approval | None = None
    approval_seconds: float = 0.0
    files: tuple[FakeFile, ...] = ()
    used: budget_pb2.BudgetUsage | None = None

    @property
    def is_held(self) -> bool:
        """True if the run goes on until the script ends it."""
        return not (self.answer or self.error_reason or self.approval or self.files or self.used)


@dataclass(slots=True)
class SessionRecord:
    """A session with everything that is known of it. `texts` are messages that no run has read."""

    session: session_pb2.Session
    request: SpawnSessionRequest
    files: list[FakeFile]
    texts: list[str]
    events: list[session_pb2.SessionEvent] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    sent: dict[str, str] = field(default_factory=dict)
    approvals: list[approval_pb2.Approval] = field(default_factory=list)
    outputs: list[tuple[OutputSet, Sequence[FakeFile]]] = field(default_factory=list)
    held: bool = False
    read: str = ""
    earlier_runs: dict[str, session_pb2.Run] = field(default_factory=dict)
    budget: budget_pb2.SessionBudget | None = None
    budget_wait_end: datetime | None = None
    budget_used: str = ""
    newest_epoch: int = 0
    worker_epoch: int = 0
    """The epoch at which a worker holds the live run. 0 if none does."""
    first_epoch: int = 0
    """The epoch at which a worker claimed the run first."""
    is_urgent: bool = False
    """True while a text waits that interrupts the turn of a worker."""

    @property
    def is_live(self) -> bool:
        """True if a run is queued, is running or waits."""
        return self.session.HasField("latest_run") and self.session.latest_run.state in _LIVE

    @property
    def is_terminal(self) -> bool:
        """True if the session accepts no more runs."""
        return self.session.state in _TERMINAL

    @property
    def sets(self) -> list[tuple[AttachmentSet, Sequence[FakeFile]]]:
        """The sets as attachment-blob has them, with their files, oldest first."""
        found: list[tuple[AttachmentSet, Sequence[FakeFile]]] = []
        if self.files:
            found.append((self._attachment_set, self.files))
        for output, files in self.outputs:
            one = AttachmentSet(
                set_id=output.set_id, session_id=output.session_id, run_id=output.run_id,
                state=SET_STATE_ATTACHED, files=output.files, total_bytes=output.total_bytes,
                create_time=output.publish_time,
            )  # fmt: skip
            found.append((one, files))
        return found

    @property
    def _attachment_set(self) -> AttachmentSet:
        receipt = self.session.receipt
        released = self.is_terminal and self.session.cleanup != session_pb2.CLEANUP_KEEP
        return AttachmentSet(
            set_id=receipt.set_id,
            session_id=self.session.session_id,
            state=SET_STATE_RELEASED if released else SET_STATE_ATTACHED,
            files=[] if released else receipt.files,
            total_bytes=0 if released else receipt.total_bytes,
            create_time=self.session.create_time,
        )

    def begin(self) -> None:
        """Record the spawn: its events, the first entries and the queued run."""
        self.add_event(session_pb2.SESSION_EVENT_KIND_PROVISIONING)
        self.add_entry(EntryBody(header=Header(session_id=self.session.session_id)))
        if names := [file.name for file in self.files]:
            note = SystemNote(topic="attachments", text=f"Attached files: {', '.join(names)}")
            self.add_entry(EntryBody(system_note=note))
        self.session.state = session_pb2.SESSION_STATE_ACTIVE
        self.queue_run()

    def queue_run(self) -> None:
        """Queue a run for the texts that wait."""
        run = session_pb2.Run(
            run_id=new_id(IdKind.RUN),
            session_id=self.session.session_id,
            state=session_pb2.RUN_STATE_QUEUED,
            queue_time=now(),
        )
        if self.session.HasField("latest_run"):
            self.earlier_runs[self.session.latest_run.run_id] = deepcopy(self.session.latest_run)
        self.session.latest_run.CopyFrom(run)
        self._add_run_event()

    def start_run(self) -> None:
        """Claim the queued run: it reads the texts that wait."""
        run = self.session.latest_run
        run.state = session_pb2.RUN_STATE_RUNNING
        run.epoch, run.attempt_count = run.epoch + 1, 1
        if not run.HasField("start_time"):
            run.start_time.CopyFrom(now())
        self.read_texts()
        self._add_run_event()

    def claim(self) -> None:
        """Give the queued run to a worker. The task is in the transcript; later texts wait."""
        run = self.session.latest_run
        run.state, run.attempt_count = session_pb2.RUN_STATE_RUNNING, run.attempt_count + 1
        self.newest_epoch += 1
        if run.epoch == 0:
            self.first_epoch = self.newest_epoch
        run.epoch = self.worker_epoch = self.newest_epoch
        if not run.HasField("start_time"):
            run.start_time.CopyFrom(now())
        if not any(entry.body.message.role == ROLE_USER for entry in self.entries):
            self.read = self.texts.pop(0)
            self.add_message(ROLE_USER, self.read)
        self._add_run_event()

    def requeue(self) -> None:
        """Take the run from its worker, which hands it back."""
        self.worker_epoch = 0
        self.session.latest_run.state = session_pb2.RUN_STATE_QUEUED
        self.session.latest_run.attempt_count -= 1
        self._add_run_event()

    def accept(self, entry_id: str, text: str) -> None:
        """End the run of a worker with its answer, which is an entry."""
        self.session.latest_run.result_text = text
        self.add_entry(EntryBody(label=Label(entry_id=entry_id, kind=LABEL_KIND_FINAL)))
        self.session.latest_run.state = session_pb2.RUN_STATE_SUCCEEDED
        self._end_run()

    def publish(self, files: Sequence[FakeFile], request_id: str = "") -> None:
        """Publish the files for the running run."""
        run, number = self.session.latest_run, len(self.outputs) + 1
        output = OutputSet(
            set_id=new_id(IdKind.ATTACHMENT_SET), session_id=run.session_id, run_id=run.run_id,
            request_id=request_id or f"publish:{number}", files=map(file_of, files),
            total_bytes=sum(len(file.data) for file in files), publish_time=now(),
        )  # fmt: skip
        self.outputs.append((output, files))
        run.output_file_count += len(files)
        run.output_total_bytes += output.total_bytes
        event = self.add_event(session_pb2.SESSION_EVENT_KIND_FILES_PUBLISHED)
        event.run_id, event.set_id = run.run_id, output.set_id
        event.detail = f"{len(files)} file{'s' * (len(files) != 1)}, {output.total_bytes} bytes"

    def read_texts(self) -> None:
        """Append the texts that wait to the transcript."""
        for text in self.texts:
            self.add_message(ROLE_USER, text)
            self.read = text
        self.texts.clear()

    @property
    def pending(self) -> approval_pb2.Approval | None:
        """The approval for which the run waits, if it does."""
        latest = self.approvals[-1] if self.approvals else None
        is_pending = latest is not None and latest.state == approval_pb2.APPROVAL_STATE_PENDING
        return latest if is_pending else None

    def wait_for_person(self, outcome: Outcome) -> None:
        """Let the running run wait for the scripted approval."""
        run, approval = self.session.latest_run, approval_pb2.Approval()
        if outcome.approval is not None:
            approval.CopyFrom(outcome.approval)
        approval.approval_id = run.approval_id = new_id(IdKind.APPROVAL)
        approval.session_id, approval.run_id = run.session_id, run.run_id
        approval.agent_id, approval.state = self.session.agent_id, approval_pb2.APPROVAL_STATE_PENDING
        approval.create_time.CopyFrom(now())
        end = approval.create_time.ToDatetime(UTC) + timedelta(seconds=outcome.approval_seconds)
        approval.expire_time.FromDatetime(end)
        self.approvals.append(approval)
        run.state = session_pb2.RUN_STATE_WAITING_APPROVAL
        self._add_run_event()

    def close_approval(self, state: "approval_pb2.ApprovalState.ValueType") -> None:
        """Set the state of the approval for which the run waits, if it does."""
        if approval := self.pending:
            approval.state = state
            approval.decide_time.CopyFrom(now())
        self.session.latest_run.approval_id = ""

    def resume(self, state: "approval_pb2.ApprovalState.ValueType") -> None:
        """Close the approval for which the run waits, and queue the run."""
        self.close_approval(state)
        self.session.latest_run.state = session_pb2.RUN_STATE_QUEUED
        self._add_run_event()

    @property
    def waits_for_budget(self) -> bool:
        """True if the run waits until a budget is raised."""
        return self.is_live and self.session.latest_run.state == session_pb2.RUN_STATE_WAITING_BUDGET

    def wait_for_budget(self, session_id: str, time: timedelta, used: str) -> None:
        """Let the running run wait until the budget of a session is raised; without a time, let it
        fail. `used` names the limits that are reached.
        """
        run = self.session.latest_run
        run.state, run.budget_session_id = session_pb2.RUN_STATE_WAITING_BUDGET, session_id
        run.attempt_count -= 1  # The wait is no attempt.
        self.budget_wait_end, self.budget_used = utc_now() + time, used
        if time:
            self._add_run_event(self._budget_text(session_id))
        else:
            self._fail_for_budget()

    def leave_budget(self) -> None:
        """Queue the run that waits for a budget."""
        run = self.session.latest_run
        run.state, run.budget_session_id = session_pb2.RUN_STATE_QUEUED, ""
        self._add_run_event("the budget has room")

    def _fail_for_budget(self) -> None:
        session_id = self.session.latest_run.budget_session_id
        self.end_run(Outcome(None, Reason.SESSION_BUDGET_EXCEEDED, self._budget_text(session_id)))

    def _budget_text(self, session_id: str) -> str:
        return f"the budget of session {session_id} is used up: {self.budget_used}"

    def expire(self) -> None:
        """End the waiting run, or apply the policy of its approval, if its time is over."""
        if self.waits_for_budget and self.budget_wait_end and self.budget_wait_end <= utc_now():
            self._fail_for_budget()
        approval = self.pending
        if approval is not None and approval.on_expiry == approval_pb2.EXPIRY_POLICY_ESCALATE:
            self._escalate(approval)
        if approval is None or approval.expire_time.ToDatetime(UTC) > utc_now():
            return
        if approval.on_expiry == approval_pb2.EXPIRY_POLICY_FAIL:
            self.close_approval(approval_pb2.APPROVAL_STATE_EXPIRED)
            message = "the run waited for an approval, and no person decided in time"
            self.end_run(Outcome(None, Reason.APPROVAL_EXPIRED, message))
        else:
            self.resume(approval_pb2.APPROVAL_STATE_EXPIRED)

    def _escalate(self, approval: approval_pb2.Approval) -> None:
        """Let the approval wait for as long again, once, if its time is over."""
        end = approval.expire_time.ToDatetime(UTC)
        if approval.HasField("escalate_time") or end > utc_now():
            return
        approval.escalate_time.CopyFrom(approval.expire_time)
        approval.expire_time.FromDatetime(end + (end - approval.create_time.ToDatetime(UTC)))
        self._add_run_event(f"{approval.approval_id} was escalated")

    def end_run(self, outcome: Outcome) -> None:
        """End the live run as scripted. A session for one run is closed."""
        run = self.session.latest_run
        self.close_approval(approval_pb2.APPROVAL_STATE_WITHDRAWN)
        if outcome.answer is not None:
            self.read_texts()
            run.result_text = outcome.answer(self.read)
            run.usage.input_token_count += len(self.read.split())
            run.usage.output_token_count += len(run.result_text.split())
            answer = self.add_message(ROLE_ASSISTANT, run.result_text)
            answer.writer.run_id, answer.writer.epoch = run.run_id, run.epoch
            self.add_entry(EntryBody(label=Label(entry_id=answer.entry_id, kind=LABEL_KIND_FINAL)))
            run.state = session_pb2.RUN_STATE_SUCCEEDED
        else:
            run.state = _END_STATES.get(outcome.error_reason, session_pb2.RUN_STATE_FAILED)
            run.error_reason = reason_number(outcome.error_reason)
            run.error_message = outcome.error_message
        self._end_run()

    def _end_run(self) -> None:
        run = self.session.latest_run
        self.held, self.worker_epoch, self.is_urgent, run.budget_session_id = False, 0, False, ""
        run.end_time.CopyFrom(now())
        self._add_run_event()
        if self.session.mode == session_pb2.SESSION_MODE_RUN:
            self.close()

    def run(self, run_id: str) -> session_pb2.Run:
        """Return a run of the session. Raises NOT_FOUND."""
        if run_id == self.session.latest_run.run_id:
            return self.session.latest_run
        if run_id not in self.earlier_runs:
            raise not_found("run", run_id)
        return self.earlier_runs[run_id]

    def interrupt(self) -> None:
        """End the live run. Texts that wait remain for the next run."""
        self.session.latest_run.interrupt_time.CopyFrom(now())
        self.end_run(Outcome(None, Reason.INTERRUPTED, "the run was interrupted"))

    def kill(self) -> int:
        """End the live run and close the session. Return the number of killed runs."""
        killed = int(self.is_live)
        if killed:
            self.end_run(Outcome(None, Reason.KILLED, "the session was killed"))
        self.close()
        return killed

    def close(self) -> None:
        """Close the session, if it is open."""
        if not self.is_terminal:
            self.session.state = session_pb2.SESSION_STATE_CLOSED
            self.session.end_time.CopyFrom(now())
            self.add_event(session_pb2.SESSION_EVENT_KIND_CLOSED)

    def add_event(self, kind: session_pb2.SessionEventKind.ValueType) -> session_pb2.SessionEvent:
        """Append an event and return it."""
        event = session_pb2.SessionEvent(number=len(self.events) + 1, kind=kind, event_time=now())
        self.events.append(event)
        return event

    def add_message(self, role: Role.ValueType, text: str) -> Entry:
        """Append a message of one text and return its entry."""
        block = ContentBlock(text=Text(text=text))
        return self.add_entry(EntryBody(message=Message(role=role, content=[block])))

    def add_entry(self, body: EntryBody) -> Entry:
        """Append an entry and return it."""
        entry = Entry(entry_id=new_id(IdKind.ENTRY), seq=len(self.entries) + 1, create_time=now(), body=body)
        self.entries.append(entry)
        return entry

    def _add_run_event(self, detail: str = "") -> None:
        event = self.add_event(session_pb2.SESSION_EVENT_KIND_RUN)
        event.run_id, event.run_state = self.session.latest_run.run_id, self.session.latest_run.state
        event.detail = detail


def file_of(file: FakeFile) -> AttachmentFile:
    """Return the description of a file."""
    return AttachmentFile(
        name=file.name, size_bytes=len(file.data), sha256=hashlib.sha256(file.data).hexdigest(),
        mime_type=file.mime_type,
    )  # fmt: skip


def now() -> Timestamp:
    """Return the current time as a message."""
    stamp = Timestamp()
    stamp.FromDatetime(utc_now())
    return stamp
