"""How long spawns took during each fault, and whether that is within the bounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call

SETTLED_SECONDS = 10.0
"""After this time a replica that hangs is known, and no spawn waits for it."""
ANSWERED_SECONDS = 3.0
"""The bound of the slowest answer but one in a hundred, after that time."""
REFUSED_SECONDS = 2.0
"""The bound of the slowest refusal, from the beginning of the fault."""


@dataclass(frozen=True, slots=True)
class _Times:
    """The seconds of the spawns during a fault, in the order of their length."""

    answered_count: int
    settled: list[float]
    refused: list[float]

    @property
    def settled_p99(self) -> float:
        return self.settled[int(0.99 * (len(self.settled) - 1))] if self.settled else 0.0

    @property
    def slowest_refusal(self) -> float:
        return self.refused[-1] if self.refused else 0.0


def spawn_times(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[str]:
    """Return a line for each fault: the spawns that were answered and refused, and how slowly.

    Spawns whose clients had short deadlines on purpose do not count.
    """
    return [_line(fault, _times(fault, calls)) for fault in faults]


def late_spawns(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[str]:
    """Return a line for each fault during which spawns were answered or refused too late."""
    timed = [(fault, _times(fault, calls)) for fault in faults]
    return [
        _line(fault, times)
        for fault, times in timed
        if times.settled_p99 > ANSWERED_SECONDS or times.slowest_refusal > REFUSED_SECONDS
    ]


def _times(fault: AppliedFault, calls: Sequence[Call]) -> _Times:
    spawns = [
        call
        for call in calls
        if call.operation == "spawn" and "files" in call.given and fault.start <= call.start < fault.end
    ]
    answered = [call for call in spawns if call.is_ok]
    settled = [call for call in answered if call.start >= fault.start + SETTLED_SECONDS]
    return _Times(
        len(answered),
        sorted(call.end - call.start for call in settled),
        sorted(call.end - call.start for call in spawns if not call.is_ok),
    )


def _line(fault: AppliedFault, times: _Times) -> str:
    return (
        f"{fault.fault}: {times.answered_count} spawns answered, after {SETTLED_SECONDS:.0f} s with a p99 of"
        f" {times.settled_p99:.1f} s; {len(times.refused)} refused, within {times.slowest_refusal:.1f} s"
    )
