"""The rules of a run: names of its writes, what it spent, when to try again, how it is said to have failed."""

from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.mcp.config import McpServerNotOffered

DEFAULT_MAX_TURN_COUNT = 50
LATE_TURN_COUNT = 5
MAX_CUT_OFF_COUNT = 3  # Each is paid for in full; whom two notes did not help none will.
DEFAULT_CONTEXT_TOKEN_BUDGET = 100_000
RUNNER_ERROR = "RUNNER_ERROR"
TURN_LIMIT_EXCEEDED = "TURN_LIMIT_EXCEEDED"
OUTPUT_LIMIT_REACHED = "OUTPUT_LIMIT_REACHED"
MCP_SERVER_NOT_OFFERED = "MCP_SERVER_NOT_OFFERED"
_MAX_MESSAGE_CHARACTERS = 1000
_MAX_FAILED_COMPACTIONS = 2
_FRESH_TOKENS, _FRESH_SHARE = 24_000, 4

LOST = (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST)
"""The run is somebody else's, or over: nothing more may be done in its name."""

PEER_AWAY = (
    Reason.DEPENDENCY_UNAVAILABLE,
    Reason.DRAINING,
    Reason.POOL_EXHAUSTED,
    Reason.CONFLICT,
    Reason.SPAWN_IN_PROGRESS,
    Reason.CANCELLED,
)
"""The same call may succeed in a moment; CANCELLED is what a peer that goes down answers."""

TRANSIENT = (*PEER_AWAY, Reason.DEADLINE_EXCEEDED)
"""A call that may be repeated at no cost is made again on these."""


@dataclass(slots=True)
class Spending:
    """Tokens a run used so far, over all who carried it."""

    input_token_count: int = 0
    output_token_count: int = 0
    cache_read_token_count: int = 0
    cache_write_token_count: int = 0

    def add(self, *, input_: int, output: int, cache_read: int, cache_write: int) -> None:
        self.input_token_count += input_
        self.output_token_count += output
        self.cache_read_token_count += cache_read
        self.cache_write_token_count += cache_write


@dataclass(slots=True)
class Turns:
    """The turns of a run, over all who carried it. Where messages came before the draft of the last one, LATE_TURN_COUNT are added to read them.

    Not one for each: whoever goes on sending would have it go on for ever, and what a message asks for may take more than an answer.
    """

    max_count: int
    taken_count: int = 0
    has_late_messages: bool = False

    @property
    def are_over(self) -> bool:
        """Whether the agent's are: a draft that is sent back now cannot be worked on."""
        return self.taken_count >= self.max_count

    @property
    def may_go_on(self) -> bool:
        """Whether there is one left to take."""
        return self.taken_count < self.max_count + (LATE_TURN_COUNT if self.has_late_messages else 0)

    def count_late_messages(self) -> None:
        """Messages came before a draft; before the last turn they are read in the next one."""
        self.has_late_messages = self.has_late_messages or self.are_over


@dataclass(slots=True)
class Compacting:
    """What came of asking for compactions in this run. One that fails is hardly worth more waiting: `is_worth_asking` ends after a few."""

    failed_count: int = 0

    @property
    def is_worth_asking(self) -> bool:
        return self.failed_count < _MAX_FAILED_COMPACTIONS


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run ends that has no answer."""

    reason: str
    message: str


class TurnLimitExceeded(Exception):
    """The run took as many turns as its agent may."""

    def __init__(self, max_turn_count: int) -> None:
        super().__init__(f"no answer within {max_turn_count} turns")


class OutputLimitReached(Exception):
    """A model's answers ended at its output limit before they said anything, and it will not be asked again."""

    def __init__(self, model: str, cut_off_count: int) -> None:
        super().__init__(
            f"{model} reached its output limit before it said anything or had written a tool call to its end, {cut_off_count} in a row;"
            " have it think less, give it less to do at once, or raise the model's max_output"
        )


def fresh_token_count(token_budget: int) -> int:
    """How much of a context's end stays as it is: with a small budget less than usual, or else nothing of it could ever be summarized."""
    return min(_FRESH_TOKENS, max(1, token_budget // _FRESH_SHARE))


def answer_key(run_id: str, epoch: int, turn: int) -> str:
    """Names the append of what the model said in a turn; a turn that is taken again after a takeover is another one."""
    return f"answer:{run_id}:{epoch}:{turn}"


def result_key(answer_entry_id: str, call_index: int) -> str:
    """Names the append of a tool's result. Providers use a tool call id again, so the call is named by where it stands."""
    return f"result:{answer_entry_id}:{call_index}"


def call_request_id(answer_entry_id: str, call_index: int) -> str:
    """Names what a tool call asks of the mesh: the same for whoever makes the call again from the transcript."""
    return f"call:{answer_entry_id}:{call_index}"


def backoff_seconds(attempt: int, *, jitter: float, floor: float | None = None, cap: float = 5.0) -> float:
    """How long to wait before the next try: doubling from 0.1 s to `cap`, spread by `jitter` in [0, 1) over its upper half.

    `floor` is what the peer asked for; it holds up to `cap` too, since the lease goes on meanwhile.
    """
    full = min(cap, 0.1 * float(1 << min(attempt, 16)))
    return max(full * (0.5 + jitter / 2), min(floor or 0.0, cap))


def failure_of(error: Exception) -> Failure:
    """What is said of the error to whoever reads the run: the mesh's own reasons and texts, and of anything else nothing."""
    if isinstance(error, MeshError):
        return Failure(error.reason.value, " ".join(error.message.split())[:_MAX_MESSAGE_CHARACTERS])
    if isinstance(error, TurnLimitExceeded):
        return Failure(TURN_LIMIT_EXCEEDED, str(error))
    if isinstance(error, OutputLimitReached):
        return Failure(OUTPUT_LIMIT_REACHED, str(error)[:_MAX_MESSAGE_CHARACTERS])
    if isinstance(error, McpServerNotOffered):
        return Failure(MCP_SERVER_NOT_OFFERED, str(error))
    return Failure(RUNNER_ERROR, "the runner failed; its log has the error under this run's trace")
