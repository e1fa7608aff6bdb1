"""A claimed run in this runner's hands."""

from dataclasses import dataclass, field
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2
from spawnmesh.transcript.v1 import entry_pb2, transcript_service_pb2
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runner.domain import (
    DEFAULT_CONTEXT_TOKEN_BUDGET,
    DEFAULT_MAX_TURN_COUNT,
    Compacting,
    Spending,
    fresh_token_count,
)
from spawnmesh_runner.lost_files import LostFiles
from spawnmesh_runner.mesh import Mesh
from spawnmesh_runner.tools.registry import BUILT_IN
from spawnmesh_runner.tools.tool import MCP_PREFIX, AnyTool, mcp_prefix


@dataclass(frozen=True, slots=True)
class Assignment:
    """One claimed run, and all that working on it needs.

    Seven things change: `spending` grows with each model call, `listened` is what of `HookKind` anybody listens to, as last seen, `tools` get
    the one that reads references once the context has some, `compacting` counts what failed, `covered` keeps what of the turn is in a summary,
    by the seq up to which that goes, `called` names the tools that this run may have run, whoever carried it, and `lost` the files that it
    wrote where they are gone. `note` is what the model has to know of the tools that it does not have.
    """

    claimed: run_service_pb2.ClaimedRun
    mesh: Mesh
    workspace: Path
    tools: dict[str, AnyTool]
    generate_timeout_seconds: float
    note: str = ""
    spending: Spending = field(default_factory=Spending)
    began: float = field(default_factory=monotonic_seconds)
    listened: set[int] = field(default_factory=set)
    compacting: Compacting = field(default_factory=Compacting)
    covered: dict[int, list[entry_pb2.Entry]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    lost: LostFiles = field(default_factory=LostFiles)

    @property
    def session_id(self) -> str:
        return self.claimed.session.session_id

    @property
    def run_id(self) -> str:
        return self.claimed.run.run_id

    @property
    def epoch(self) -> int:
        return self.claimed.run.epoch

    @property
    def first_epoch(self) -> int:
        """No entry of a claim with a lower epoch is this run's. 1, which goes for every run, where the session service does not know it."""
        return self.claimed.first_epoch or 1

    @property
    def writer(self) -> transcript_service_pb2.WriterClaim:
        return transcript_service_pb2.WriterClaim(run_id=self.run_id, epoch=self.epoch)

    @property
    def max_turn_count(self) -> int:
        return self.claimed.agent.max_turn_count or DEFAULT_MAX_TURN_COUNT

    @property
    def system_prompt(self) -> str:
        """The agent's, and the notes below it."""
        return "\n\n".join(filter(None, (self.claimed.agent.system_prompt, self.note, self.lost.note)))

    @property
    def has_final_effects(self) -> bool:
        """Whether the run may have done what can neither be undone nor done again."""
        return any(self._is_final(name) for name in self.called if self.may_have_run(name))

    def may_have_run(self, name: str) -> bool:
        """Whether a call of that name was more than refused.

        A server that is not there now may have been there for an earlier runner, and the agent may have had tools then that it no longer has.
        """
        if name in self.tools or name.startswith(tuple(map(mcp_prefix, self.claimed.agent.mcp_servers))):
            return True
        return self.epoch > self.first_epoch and (name in BUILT_IN or name.startswith(MCP_PREFIX))

    def may_repeat(self, name: str) -> bool:
        """Whether a call of that name, of which nobody knows what came of it, may be made again. One that could do nothing, too."""
        tool = self.tools.get(name)
        return not self.may_have_run(name) if tool is None else tool.idempotent

    def _is_final(self, name: str) -> bool:
        tool = self.tools.get(name) or BUILT_IN.get(name)
        return tool is None or not tool.idempotent

    @property
    def context_token_budget(self) -> int:
        return self.claimed.agent.context_token_budget or DEFAULT_CONTEXT_TOKEN_BUDGET

    @property
    def fresh_tail(self) -> FreshTail:
        return FreshTail(token_count=fresh_token_count(self.context_token_budget))

    def spend(self, usage: message_pb2.TokenUsage) -> None:
        """Counts one model call's tokens."""
        self.spending.add(
            input_=usage.input_token_count,
            output=usage.output_token_count,
            cache_read=usage.cache_read_token_count,
            cache_write=usage.cache_write_token_count,
        )


def render_usage(spending: Spending) -> message_pb2.TokenUsage:
    """The spending as the contracts write it."""
    return message_pb2.TokenUsage(
        input_token_count=spending.input_token_count,
        output_token_count=spending.output_token_count,
        cache_read_token_count=spending.cache_read_token_count,
        cache_write_token_count=spending.cache_write_token_count,
    )
