"""How long spawns took during each fault."""

from collections.abc import Sequence

from tests.chaos.random_faults.faults import AppliedFault
from tests.chaos.random_faults.history import Call

SETTLED_SECONDS = 10.0
"""After this time a replica that hangs is known, and no spawn waits for it."""


def spawn_times(faults: Sequence[AppliedFault], calls: Sequence[Call]) -> list[str]:
    """Return a line for each fault: the spawns that were answered and refused, and the slowest.

    Spawns whose clients had short deadlines on purpose do not count.
    """
    spawns = [call for call in calls if call.operation == "spawn" and "files" in call.given]
    return [
        _line(fault, [call for call in spawns if fault.start <= call.start < fault.end]) for fault in faults
    ]


def _line(fault: AppliedFault, spawns: Sequence[Call]) -> str:
    answered = [call.end - call.start for call in spawns if call.is_ok]
    settled = [
        call.end - call.start for call in spawns if call.is_ok and call.start >= fault.start + SETTLED_SECONDS
    ]
    refused = [call.end - call.start for call in spawns if not call.is_ok]
    return (
        f"{fault.fault}: {len(answered)} spawns answered, after {SETTLED_SECONDS:.0f} s within"
        f" {max(settled, default=0.0):.1f} s; {len(refused)} refused, within {max(refused, default=0.0):.1f} s"
    )
