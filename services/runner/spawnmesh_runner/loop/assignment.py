"""A claimed run while this runner works on it."""

from dataclasses import dataclass, field
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_client.drafts import Drafts
from spawnmesh_client.run_compaction import DEFAULT_CONTEXT_TOKEN_BUDGET, RunCompactions, fresh_tail
from spawnmesh_client.run_events import RunEvents
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.span_content import SpanContent

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.domain.tools import MCP_PREFIX, mcp_prefix
from spawnmesh_runner.domain.turns import DEFAULT_MAX_TURN_COUNT, RepeatedCalls
from spawnmesh_runner.domain.usage import UsageTotal
from spawnmesh_runner.loop.handover import Handover
from spawnmesh_runner.loop.interruption import Interruption
from spawnmesh_runner.loop.lost_files import LostFiles
from spawnmesh_runner.tools.calling.registry import BUILT_IN
from spawnmesh_runner.tools.calling.tool import AnyTool
from spawnmesh_runner.tools.fetch_files import FETCH_FILES


@dataclass(frozen=True, slots=True)
class Assignment:
    """A claimed run, and everything that the work on it needs.

    Ten fields change during the run:

    - `usage_total` grows with each model call.
    - `active_hooks` holds the values of `HookKind` that have a subscriber, as last listed.
    - `tools` gets `transcript_describe` once the context has references to long outputs.
    - `compactions` counts failed compactions, and knows the part of the turn that a summary
      replaced.
    - `called_tools` names the tools that this run may have executed, on any runner.
    - `lost_files` are the files that the run wrote on an earlier runner.
    - `repeated_calls` tells whether the run makes progress.
    - `interruption` tells what of the run must stop.
    - `handover` tells whether the run is being given up until a person or a budget lets it go on.
    - `drafts` show the answers to watchers while models give them.
    - `run_events` tell watchers which models failed and what plugins decided.

    `tools_note` tells the model which of its tools are missing. Without `span_content`, the spans
    of tool calls have neither arguments nor results.
    """

    claimed: run_service_pb2.ClaimedRun
    peers: Peers
    workspace: Path
    max_workspace_bytes: int
    tools: dict[str, AnyTool]
    generate_timeout_seconds: float
    tools_note: str = ""
    span_content: SpanContent | None = None
    usage_total: UsageTotal = field(default_factory=UsageTotal)
    start_seconds: float = field(default_factory=monotonic_seconds)
    active_hooks: set[int] = field(default_factory=set)
    compactions: RunCompactions = field(default_factory=RunCompactions)
    called_tools: set[str] = field(default_factory=set)
    lost_files: LostFiles = field(default_factory=LostFiles)
    repeated_calls: RepeatedCalls = field(default_factory=RepeatedCalls)
    interruption: Interruption = field(default_factory=Interruption)
    handover: Handover = field(default_factory=Handover)
    drafts: Drafts = field(default_factory=Drafts)
    run_events: RunEvents = field(default_factory=RunEvents)

    @property
    def session_id(self) -> str:
        return self.claimed.session.session_id

    @property
    def run_id(self) -> str:
        return self.claimed.run.run_id

    @property
    def age_seconds(self) -> float:
        """The time since the claim was received."""
        return monotonic_seconds() - self.start_seconds

    @property
    def epoch(self) -> int:
        return self.claimed.run.epoch

    @property
    def first_epoch(self) -> int:
        """No entry with a lower epoch belongs to this run."""
        return self.claimed.first_epoch

    @property
    def has_predecessors(self) -> bool:
        """True if earlier runners held the run."""
        return self.epoch > self.first_epoch

    @property
    def writer(self) -> transcript_service_pb2.WriterClaim:
        return transcript_service_pb2.WriterClaim(run_id=self.run_id, epoch=self.epoch)

    @property
    def max_turn_count(self) -> int:
        return self.claimed.agent.max_turn_count or DEFAULT_MAX_TURN_COUNT

    @property
    def system_prompt(self) -> str:
        """The agent's system prompt, followed by the notes."""
        can_fetch = FETCH_FILES.name in self.tools
        lost = self.lost_files.note(self.claimed.run.output_file_count if can_fetch else 0)
        return "\n\n".join(filter(None, (self.claimed.agent.system_prompt, self.tools_note, lost)))

    @property
    def has_final_effects(self) -> bool:
        """True if the run may have done something that can neither be undone nor repeated."""
        return any(self._has_final_effect(name) for name in self.called_tools if self.may_have_run(name))

    def may_have_run(self, name: str) -> bool:
        """Return False if every call of that name was certainly refused.

        An MCP server that is absent now may have been present for an earlier runner, and the agent
        may have had tools then that it no longer has.
        """
        if name in self.tools or name.startswith(tuple(map(mcp_prefix, self.claimed.agent.mcp_servers))):
            return True
        return self.has_predecessors and (name in BUILT_IN or name.startswith(MCP_PREFIX))

    def may_repeat(self, name: str) -> bool:
        """Return True if a call with an unknown outcome may be made again.

        That includes a call that cannot have done anything.
        """
        tool = self.tools.get(name)
        return not self.may_have_run(name) if tool is None else tool.idempotent

    def _has_final_effect(self, name: str) -> bool:
        tool = self.tools.get(name) or BUILT_IN.get(name)
        return tool is None or not tool.idempotent

    @property
    def context_token_budget(self) -> int:
        return self.claimed.agent.context_token_budget or DEFAULT_CONTEXT_TOKEN_BUDGET

    @property
    def fresh_tail(self) -> FreshTail:
        return fresh_tail(self.context_token_budget)

    def add_usage(self, usage: message_pb2.TokenUsage) -> None:
        """Add the tokens and the cost of one model call, which is newer than those before."""
        self.usage_total.add(
            input_=usage.input_token_count,
            output=usage.output_token_count,
            cache_read=usage.cache_read_token_count,
            cache_write=usage.cache_write_token_count,
            cost_micros=usage.cost_micros,
            price_version=usage.price_version,
        )


def seconds_left(claimed: run_service_pb2.ClaimedRun, start_seconds: float) -> float:
    """Return the time until the run's deadline; `start_seconds` is when its claim was received.

    The time is measured on the monotonic clock, so the machine's wall clock does not matter.
    """
    elapsed = monotonic_seconds() - start_seconds
    return max(claimed.time_left.ToTimedelta().total_seconds() - elapsed, 0.0)


def render_usage(usage_total: UsageTotal) -> message_pb2.TokenUsage:
    """Render the total as the contracts' message."""
    return message_pb2.TokenUsage(
        input_token_count=usage_total.input_token_count,
        output_token_count=usage_total.output_token_count,
        cache_read_token_count=usage_total.cache_read_token_count,
        cache_write_token_count=usage_total.cache_write_token_count,
        cost_micros=usage_total.cost_micros,
        price_version=usage_total.price_version,
    )
