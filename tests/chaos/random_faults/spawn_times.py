"""The times of spawns during each fault, compared with their bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from spawnmesh_core.status import Status

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.load.everything import GATED
from tests.chaos.random_faults.plan import PLUGIN, can_spawn

SETTLED_SECONDS = 10.0
"""After this time a replica that hangs is known, and no spawn waits for it."""
ANSWERED_SECONDS = 3.0
"""The bound of the slowest answer but one in a hundred, after that time."""
REFUSED_SECONDS = 2.0
"""The bound of the slowest refusal, from the beginning of the fault."""
_CUT_OFF = "the spawn was cut off and undone"
_MOST_JOINED_SHARE = 0.5
"""If more of the spawns than this share joined another call, the others show too little."""
_SECONDS_FOR_A_SPAWN = 5.0
"""A fault met too few spawns to show anything if there were fewer than one in this time."""


@dataclass(frozen=True, slots=True)
class _Spawns:
    """The spawns during a fault. Those of clients with short deadlines are not among them.

    `repeats` has the calls that are not the first one of their request_id.
    """

    fault: AppliedFault
    calls: list[Call]
    repeats: list[Call]

    @property
    def refused(self) -> list[Call]:
        """The refused ones, without the repeats that waited for the first call of their request_id:
        it goes on (ABORTED), or was cut off at its deadline.
        """
        return [call for call in self.calls if not call.is_ok and not self._joins_another(call)]

    @property
    def joined(self) -> list[Call]:
        """The repeats that waited for the first call of their request_id."""
        return [call for call in self.calls if self._joins_another(call)]

    def _joins_another(self, call: Call) -> bool:
        is_joined = call.status == Status.ABORTED or _CUT_OFF in call.message
        return is_joined and any(call is repeat for repeat in self.repeats)

    def _could_succeed(self, call: Call) -> bool:
        is_gated = call.tenant == GATED
        return can_spawn(self.fault.fault, has_files=bool(call.given["files"]), is_gated=is_gated)

    @property
    def slowest_refusal(self) -> float:
        return max(map(_seconds, self.refused), default=0.0)

    @property
    def settled_p99(self) -> float:
        seconds = sorted(_seconds(call) for call in self.calls if call.is_ok and self._is_settled(call))
        return seconds[ceil(0.99 * len(seconds)) - 1] if seconds else 0.0

    def faults_found(self) -> Iterator[str]:
        """Yield what is wrong."""
        if len(self.calls) < (self.fault.end - self.fault.start) / _SECONDS_FOR_A_SPAWN:
            yield f"only {len(self.calls)} spawns were made"
        if self.settled_p99 > ANSWERED_SECONDS:
            yield f"answers took {self.settled_p99:.1f} s"
        if self.slowest_refusal > REFUSED_SECONDS:
            yield f"a refusal took {self.slowest_refusal:.1f} s"
        if others := sorted({call.status for call in self.refused} - {Status.UNAVAILABLE}):
            yield f"refusals were {', '.join(others)}"
        if self.fault.fault.target == PLUGIN and not any(call.tenant == GATED for call in self.calls):
            yield "the plugin was asked about no spawn"
        if late := [call for call in self.refused if self._is_settled(call) and self._could_succeed(call)]:
            yield f"{len(late)} spawns were refused that needed nothing of what was away"
        if len(self.joined) > _MOST_JOINED_SHARE * len(self.calls):
            yield f"{len(self.joined)} of {len(self.calls)} spawns joined another call"

    def _is_settled(self, call: Call) -> bool:
        return call.start >= self.fault.start + SETTLED_SECONDS

    def __str__(self) -> str:
        answered = sum(call.is_ok for call in self.calls)
        joined = [_seconds(call) for call in self.joined]
        waited = f"; {len(joined)} joined another call, for up to {max(joined):.1f} s" if joined else ""
        return (
            f"{self.fault.fault}: {answered} spawns answered, after {SETTLED_SECONDS:.0f} s with a p99 of"
            f" {self.settled_p99:.1f} s; {len(self.refused)} refused, within {self.slowest_refusal:.1f} s"
            f"{waited}"
        )


def spawn_times(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[str]:
    """Return a line for each fault: the spawns that were answered and refused, and how slowly."""
    return [str(spawns) for spawns in _during_each(faults, calls)]


def bad_spawns(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[str]:
    """Return a line for each fault during which spawns were answered or refused too late, refused
    in another way than as UNAVAILABLE, or too few to tell.
    """
    timed = _during_each(faults, calls)
    return [f"{spawns}; {'; '.join(found)}" for spawns in timed if (found := list(spawns.faults_found()))]


def unanswered_spawns(calls: Sequence[Call]) -> list[str]:
    """Return a line for each request whose repeats got neither a session nor a refusal that is
    final.
    """
    spawns = [call for call in calls if _is_patient_spawn(call)]
    answered = {call.given["request_id"] for call in spawns if call.outcome is not Outcome.UNKNOWN}
    first = {call.given["request_id"]: call for call in reversed(spawns)}
    return [
        f"request {name} of {call.start:.1f} s was never answered: {call.reason}"
        for name, call in sorted(first.items())
        if name not in answered
    ]


def _during_each(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[_Spawns]:
    repeats = _repeats(calls)
    patient = [call for call in calls if _is_patient_spawn(call)]
    return [
        _Spawns(fault, [call for call in patient if fault.start <= call.start < fault.end], repeats)
        for fault in faults
    ]


def _repeats(calls: Sequence[Call]) -> list[Call]:
    """Return the spawns whose request_id an earlier call had, also one with a short deadline."""
    known: set[str] = set()
    found = []
    for call in sorted(calls, key=lambda call: call.start):
        if call.operation == "spawn":
            if call.given["request_id"] in known:
                found.append(call)
            known.add(call.given["request_id"])
    return found


def _is_patient_spawn(call: Call) -> bool:
    return call.operation == "spawn" and "files" in call.given


def _seconds(call: Call) -> float:
    return call.end - call.start
