"""The ends of the work on a run, or on a turn of it, that give no answer."""

from spawnmesh_core.reasons import Reason


class RunGivenUp(Exception):
    """The run waits without a runner, or it has ended: stop its work."""


class TurnCut(Exception):
    """The turn is over: an urgent message waits in the inbox of the run."""


class NoAnswer(Exception):
    """The models of a run gave no answer within its limits.

    `reason` is TURN_LIMIT_EXCEEDED, or OUTPUT_LIMIT_REACHED if the answers were cut off before they
    said anything. It is the reason of the run if the function lets it pass.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
