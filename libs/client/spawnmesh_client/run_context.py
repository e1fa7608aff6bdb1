"""The run that a worker's function works on: its task, its files, its context and its calls."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ROLE_USER, Message, Role, TokenUsage
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceStub
from spawnmesh.model_router.v1.generation_pb2 import STOP_REASON_REFUSAL, Completion
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerationEvent
from spawnmesh.session.v1 import run_service_pb2 as runs
from spawnmesh.session.v1.budget_pb2 import AwaitBudgetRequest
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_pb2 import RUN_STATE_RUNNING
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, EntryFilter
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachments import Attachable
from spawnmesh_client.client import Mesh
from spawnmesh_client.contexts import assemble_context
from spawnmesh_client.entries import entry_view
from spawnmesh_client.model_calls import ModelOptions, call_model, model_request
from spawnmesh_client.model_messages import messages_for_model
from spawnmesh_client.outputs import OutputSet
from spawnmesh_client.repeated_calls import call_again
from spawnmesh_client.resource_views import Agent
from spawnmesh_client.run_events import RunEvents
from spawnmesh_client.run_files import SETS_DIRECTORY, fetch_set, prepared_output
from spawnmesh_client.run_hooks import RunHooks
from spawnmesh_client.run_stops import RunGivenUp
from spawnmesh_client.session import Session, session_view
from spawnmesh_client.tool_loop import DEFAULT_MAX_TURN_COUNT, ToolLoop, TurnRecord
from spawnmesh_client.tools import Tool, by_name, tool
from spawnmesh_client.turn_messages import text_message
from spawnmesh_client.unfinished_turn import open_calls
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import Entry, Usage

_PUBLISH_SECONDS = 60.0
_TOKEN_BUDGET = 100_000
_PAUSE_SECONDS = 0.1
_CALL_PAGE = 64
_LONGEST_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class AssembledContext:
    """The entries that fit the token budget, and the messages that they are for a model."""

    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    token_count: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The answer of a model."""

    text: str
    message: Message
    usage: Usage


@dataclass
class RunContext:
    """A run that this program holds. Its calls have the token of the run, which renews itself."""

    mesh: Mesh
    """The mesh as the run sees it: its own session and the descendants of it."""
    session: Session
    agent: Agent
    run_id: str
    task: str
    """The newest message of the user: the task of the spawn, or a later message."""
    instruction: str
    """The change that plugins want in the answer before. Empty the first time."""
    workspace: Path
    """A directory of the run. The attached files are in `session.receipt.rel_dir` below it."""
    claimed: runs.ClaimedRun = field(repr=False)
    usage: TokenUsage = field(default_factory=TokenUsage, repr=False)
    appended: int = 0
    children: set[str] = field(default_factory=set, repr=False)
    """The children that this run has spawned."""
    urgent: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set while a message waits with which a caller has interrupted the turn."""
    is_interrupted: bool = False
    """True once a caller has interrupted the run. The function is cancelled then."""
    inbox_read_count: int = field(default=0, repr=False)
    is_given_up: bool = False
    """True from the moment at which the run waits for its budget."""
    budget_pause_seconds: float = field(default=_PAUSE_SECONDS, repr=False)
    turns: TurnRecord = field(default_factory=TurnRecord, repr=False)
    """The turns that `run_tools` has taken."""
    run_events: RunEvents = field(default_factory=RunEvents, repr=False)
    """Events about models and plugins, for the watchers of the session."""

    @property
    def has_urgent_message(self) -> bool:
        """True while a message waits with which a caller has interrupted the turn.

        Look at it between two steps, at a place where the work can stop: keep what was said, call
        `read_inbox`, which sets it to False, and go on with `task`. A function that does not look
        at it is called again with the message after its answer.
        """
        return self.urgent.is_set()

    async def assemble(self, *, token_budget: int = 0, model: str = "") -> AssembledContext:
        """Return what a model would read of the transcript, without the system prompt."""
        budget = token_budget or self.agent.context_token_budget or _TOKEN_BUDGET
        found = await assemble_context(
            self.mesh.wire.service("transcript"),
            self.session.session_id,
            token_budget=budget,
            model=model,
        )
        messages = tuple(messages_for_model(found.entries))
        return AssembledContext(tuple(map(entry_view, found.entries)), messages, found.token_count)

    async def generate(
        self,
        prompt: str = "",
        *,
        system_prompt: str | None = None,
        model: str = "",
        on_text: Callable[[str], None] | None = None,
    ) -> Generated:
        """Call a model with the prompt, or with the assembled context, and return its answer.

        The models are those of the run, the system prompt is the agent's, and tokens count for the
        run. Raises FailedPrecondition MODEL_REFUSED if the model refuses, and ResourceExhausted
        SESSION_BUDGET_EXCEEDED if a budget that the session shares is used up: let it pass, or call
        `wait_for_budget`.
        """
        messages = [text_message(ROLE_USER, prompt)] if prompt else (await self.assemble()).messages
        options = ModelOptions(system_prompt, model, on_text)
        request = model_request(self.claimed, options, messages)

        def tell(event: GenerationEvent) -> None:
            if event.HasField("text_delta") and on_text is not None:
                on_text(event.text_delta.text)

        peer = self.mesh.wire.service("model-router")
        return self.generated(await call_model(peer, request, self.usage, self.run_events, tell))

    async def run_tools(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        system_prompt: str | None = None,
        model: str = "",
        max_turn_count: int = 0,
        on_text: Callable[[str], None] | None = None,
    ) -> Generated:
        """Let a model work with tools until it answers without calling one, and return that answer.

        Each turn reads the inbox and the transcript, asks the models of the run, and makes the
        calls of the answer in order. Answers and results are in the transcript, and watchers see an
        answer while the model gives it. Return the answer from the function, and it is offered as
        it is; a function that is called again, also by another worker, goes on behind the newest
        turn.

        - The model reads a ToolError and a refusal of the mesh as the result of its call; of any
          other exception, it reads that the tool failed.
        - Plugins may choose the model, change the prompt and the tools, and block or rewrite a
          call. People approve a call as the agent's policy or a plugin wants: the run waits for
          them without a worker.
        - A context that is full is summarized. If it only refers to long outputs, the model gets
          the tool `transcript_describe`, which reads them.
        - The model sees images of the workspace that the newest message of the user names.
        - Watchers see which models failed, and what plugins decided.
        - A message that interrupts the turn cuts the model and the tool short, and is read next.
        - `on_text` gets the text of each answer in pieces; of one that broke off, it comes anew.

        Raises NoAnswer after `max_turn_count` turns of the run (0: as many as the agent may take,
        or 50) and if answers are cut off before they say anything; MODEL_REFUSED and
        SESSION_BUDGET_EXCEEDED as `generate`; RunGivenUp if the run waits: let it pass; TypeError
        and ValueError for tools that are none.
        """
        found = [one if isinstance(one, Tool) else tool(one) for one in tools]
        options = ModelOptions(system_prompt, model, on_text)
        limit = max_turn_count or self.agent.max_turn_count or DEFAULT_MAX_TURN_COUNT
        loop = ToolLoop(self, by_name(found), options, limit, self._hooks())
        return self.generated(await loop.run())

    async def wait_for_budget(self) -> None:
        """Give the run up after a model call was refused with SESSION_BUDGET_EXCEEDED, until its
        budgets have room. Return if they have room by now: call the model again.

        Otherwise it raises RunGivenUp, which ends the function: let it pass. The run then waits
        without a runner, and its workspace is removed. When the budget is raised, a worker claims
        the run and calls the function from its beginning; messages that it has appended, and files
        that it has published, stay. If the budget says that nothing waits, the run has failed.

        A function that lets the refusal pass need not call it: the worker does so.
        """
        epoch = self.claimed.run.epoch
        peer = self.mesh.wire.service("session")
        request = AwaitBudgetRequest(epoch=epoch, usage=self.usage)
        await self.run_events.reported()
        run = (await call_again(peer, BudgetServiceStub(peer.channel).AwaitBudget, request)).run
        if run.state != RUN_STATE_RUNNING or run.epoch != epoch:
            self.is_given_up = True
            raise RunGivenUp
        # The room may be that of a call under way, and be taken again soon.
        await asyncio.sleep(self.budget_pause_seconds)
        self.budget_pause_seconds = min(2 * self.budget_pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def append(self, text: str, *, role: "Role.ValueType" = ROLE_ASSISTANT) -> str:
        """Append a message to the transcript and return the id of its entry."""
        self.appended += 1
        key = f"{self.run_id}:{self.claimed.run.epoch}:{self.appended}"
        return await self.append_entries(key, EntryBody(message=text_message(role, text)))

    async def spawn(self, task: str, **options: Any) -> Session:
        """Spawn a child of the session, with the options of `Mesh.spawn`."""
        child = await self.mesh.spawn(task, **options)
        self.children.add(child.session_id)
        return child

    async def publish(self, *files: Attachable, request_id: str = "") -> OutputSet:
        """Publish files as one output set, which people and the parent can read from now on.

        - A path is published under its last component. It is relative to the workspace, and must
          lead to a file in it, also through links. Large files are uploaded before.
        - An `Attachment` has a name of its own. If its path is absolute, it may also be that of a
          file elsewhere on the host, so do not make it of words of a model.
        - Without a `request_id`, the call is identified by its files: the same files under the same
          names are the same set of the run, also when the function is called again after a crash,
          and other files are a new set. The sets of an earlier attempt stay.
        - With a `request_id`, the first files with it count: AlreadyExists REQUEST_ID_REUSED for
          other ones.

        Raises InvalidRequest for a path that leads out of the workspace or to a directory, without
        files, and after 100 sets of the run; OSError for a file that cannot be read; and the
        refusals of the files of a spawn.
        """
        async with prepared_output(self.mesh.wire, self.workspace, files) as prepared:
            request = prepared.request(self.claimed.run.epoch, request_id)
            peer = self.mesh.wire.service("session")
            stub = RunServiceStub(peer.channel)
            with prepared.files.named():
                answer = await call_again(peer, stub.PublishFiles, request, timeout_seconds=_PUBLISH_SECONDS)
        return view_of(OutputSet, answer.output_set)

    async def fetch(self, set_id: str) -> list[Path]:
        """Download the files of a set that the run may read, such as an output set of a child, and
        return their paths: `.spawnmesh/attachments/<set_id>/` in the workspace.

        Each file appears complete and with the recorded hash. A file that the function has changed
        is replaced. Raises NotFound, FailedPrecondition ATTACHMENT_SET_STATE for a set that was
        released, and OSError.
        """
        return await fetch_set(self.mesh.wire, set_id, self.workspace / SETS_DIRECTORY / set_id)

    async def take_over(self) -> None:
        """Become the only writer of the transcript, read the waiting messages, and fetch the files.

        Raises Conflict WRITER_CLAIM_LOST if another runner has the run.
        """
        peer = self.mesh.wire.service("transcript")
        request = transcripts.AcquireWriterRequest(session_id=self.session.session_id, claim=self.writer)
        await call_again(peer, TranscriptServiceStub(peer.channel).AcquireWriter, request)
        self.task = await self._newest_task()
        if not await self._has_open_calls():  # They come before what is said next.
            await self.read_inbox()
        if self.session.receipt is not None:
            directory = self.workspace / self.session.receipt.rel_dir
            await fetch_set(self.mesh.wire, self.session.receipt.set_id, directory)

    async def read_inbox(self) -> bool:
        """Move waiting messages into the transcript, each once, and note the newest one as task.
        Set `has_urgent_message` to False.

        Return False if the only news are results of children that the function has spawned, which
        it knows.
        """
        is_news = False
        peer = self.mesh.wire.service("session")
        stub = RunServiceStub(peer.channel)
        while True:
            self.urgent.clear()  # Unless a heartbeat says so while the inbox is asked.
            waiting = (await call_again(peer, stub.ListInbox, runs.ListInboxRequest())).messages
            if not waiting:
                self.inbox_read_count += 1
                return is_news
            for message in waiting:
                body = EntryBody(message=text_message(ROLE_USER, message.text))
                await self.append_entries(message.append_request_id, body)
                if message.child_session_id not in self.children:
                    is_news, self.task = True, message.text
            keys = [message.key for message in waiting]
            request = runs.AcknowledgeInboxRequest(epoch=self.claimed.run.epoch, keys=keys)
            await call_again(peer, stub.AcknowledgeInbox, request)

    @property
    def writer(self) -> transcripts.WriterClaim:
        """The claim under which the run writes."""
        return transcripts.WriterClaim(run_id=self.run_id, epoch=self.claimed.run.epoch)

    async def append_entries(
        self, key: str, *entries: EntryBody, fence: transcripts.Fence | None = None
    ) -> str:
        """Append entries once for their key, and return the id of the first.

        With a fence, raise SESSION_TAKEOVER if another writer wrote since then.
        """
        self.turns.offered = None
        peer = self.mesh.wire.service("transcript")
        request = transcripts.AppendEntriesRequest(
            session_id=self.session.session_id,
            claim=self.writer,
            request_id=key,
            entries=entries,
            fence=fence,
        )
        answer = await call_again(peer, TranscriptServiceStub(peer.channel).AppendEntries, request)
        return str(answer.entries[0].entry_id)

    def _hooks(self) -> RunHooks:
        """Return the hooks of the run, which the turns of a model dispatch."""
        peer = self.mesh.wire.service("hook")

        async def call(rpc: str, request: Any, *, timeout_seconds: float) -> Any:
            service: Any = HookServiceStub if rpc == "PublishEvents" else RunHookServiceStub
            method = getattr(service(peer.channel), rpc)
            return await call_again(peer, method, request, timeout_seconds=timeout_seconds)

        report = self.run_events.add_turn_decision
        return RunHooks(self.session.session_id, self.run_id, self.agent.agent_id, call, on_decision=report)

    async def _newest_task(self) -> str:
        peer = self.mesh.wire.service("transcript")
        request = transcripts.ListEntriesRequest(
            session_id=self.session.session_id,
            before_seq=0,
            page_size=1,
            filter=EntryFilter(roles=[ROLE_USER]),
        )
        page = await call_again(peer, TranscriptServiceStub(peer.channel).ListEntries, request)
        return entry_view(page.entries[0]).text if page.entries else ""

    async def _has_open_calls(self) -> bool:
        """Return whether another worker, or a wait for a person, left calls of tools without
        results.
        """
        if self.claimed.run.epoch <= self.claimed.first_epoch:
            return False
        peer = self.mesh.wire.service("transcript")
        request = transcripts.ListEntriesRequest(
            session_id=self.session.session_id, before_seq=0, page_size=_CALL_PAGE
        )
        page = await call_again(peer, TranscriptServiceStub(peer.channel).ListEntries, request)
        return bool(open_calls(page.entries, self.run_id))

    def generated(self, completion: Completion) -> Generated:
        """Return the answer of a completion. Raises FailedPrecondition MODEL_REFUSED."""
        self.budget_pause_seconds = _PAUSE_SECONDS
        text = "\n".join(block.text.text for block in completion.message.content if block.HasField("text"))
        if completion.stop_reason == STOP_REASON_REFUSAL:
            raise MeshError(Reason.MODEL_REFUSED, "the model refused to answer")
        return Generated(text, completion.message, view_of(Usage, completion.message.usage))


def run_context(claimed: runs.ClaimedRun, mesh: Mesh, workspace: Path) -> RunContext:
    """Return the context of a claimed run.

    Its usage begins with that of the time before the run waited for its budget.
    """
    usage = TokenUsage()
    usage.CopyFrom(claimed.run.usage)
    return RunContext(
        mesh,
        session_view(claimed.session, mesh.wire),
        view_of(Agent, claimed.agent),
        claimed.run.run_id,
        task="",
        instruction="",
        workspace=workspace,
        claimed=claimed,
        usage=usage,
    )
