"""The turns of a run: how many it may take, and how it fails when it has none left."""

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_MAX_TURN_COUNT = 50
LATE_TURN_COUNT = 5
# Each such answer costs its full price. A model that two notes did not help will not recover.
MAX_CUT_OFF_COUNT = 3
MAX_REPEAT_COUNT = 3
"""Repeats of the same calls with the same results, after which a run ends."""


class TurnLimitExceeded(Exception):
    """The run took as many turns as its agent allows."""

    def __init__(self, max_turn_count: int) -> None:
        super().__init__(f"no answer within {max_turn_count} turns")


class OutputLimitReached(Exception):
    """A model's answers reached the output limit before they said anything; the run gives up."""

    def __init__(self, model: str, cut_off_count: int) -> None:
        super().__init__(
            f"{model} reached its output limit before it said anything or had written a tool call to its end,"
            f" {cut_off_count} times in a row; have it think less, give it less to do at once,"
            " or raise the model's max_output"
        )


class NoProgress(Exception):
    """The model made the same calls again and again, and got the same results."""

    def __init__(self, tool_names: Iterable[str], repeat_count: int) -> None:
        listed = ", ".join(dict.fromkeys(tool_names))
        super().__init__(
            f"the model made the same calls of {listed} with the same results, and repeated them"
            f" {repeat_count} times in a row"
        )


@dataclass(slots=True)
class RepeatedCalls:
    """The newest calls of a run with their results, and how often they were repeated in a row."""

    newest: str = ""
    repeat_count: int = 0

    def record(self, digest: str, tool_names: Iterable[str]) -> None:
        """Record the digest of an answer's calls and their results.

        Raises NoProgress for the MAX_REPEAT_COUNT-th repeat.
        """
        self.repeat_count = self.repeat_count + 1 if digest == self.newest else 0
        self.newest = digest
        if self.repeat_count >= MAX_REPEAT_COUNT:
            raise NoProgress(tool_names, self.repeat_count)


@dataclass(slots=True)
class TurnBudget:
    """The turns of a run, counted over all runners that had it.

    When messages arrive before the draft of the last turn, the run gets LATE_TURN_COUNT more turns
    to read them. It gets them once: a sender that never stops must not keep the run alive for ever.
    It gets more than one, since a message may need more work than an answer.
    """

    max_count: int
    taken_count: int = 0
    has_late_messages: bool = False

    @property
    def is_exhausted(self) -> bool:
        """True once the agent's own turns are used up: a rejected draft cannot be revised any
        more.
        """
        return self.taken_count >= self.max_count

    @property
    def has_turn_left(self) -> bool:
        return self.taken_count < self.max_count + (LATE_TURN_COUNT if self.has_late_messages else 0)

    def record_late_messages(self) -> None:
        """Grant the late turns when messages arrive before a draft of the last turn.

        Before the last turn nothing changes: the next turn reads the messages.
        """
        self.has_late_messages = self.has_late_messages or self.is_exhausted
