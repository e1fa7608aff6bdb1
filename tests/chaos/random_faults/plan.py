"""The plan of faults: random ones from a seed, or one outage after the other."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from spawnmesh_devstack.members import SERVICES

PLUGIN, MODEL, POSTGRES, S3, DISK = "chaos-plugin", "scripted-model", "postgres", "s3", "disk"
NODES = (f"{POSTGRES} node 1", f"{POSTGRES} node 2")
"""The workers of a Citus cluster, whose coordinator is POSTGRES."""
REPLICATED = (
    *SERVICES,
    "session-worker",
    "attachment-blob-worker",
    "hook-worker",
    "transcript-worker",
    "runner",
)
PROCESSES = (*REPLICATED, *(f"{name}-2" for name in REPLICATED), PLUGIN, MODEL)
LINKS = (
    *SERVICES,
    *(f"{name}-2" for name in SERVICES),
    *(f"{POSTGRES} of {name}" for name in SERVICES),
    S3,
    PLUGIN,
    MODEL,
)

# The plan of `make test`: a fault of every kind, PostgreSQL, S3 and the plugin among the targets, and
# an outage of a service that is longer than a runner waits for one.
SHORT_SEED = 7916
SHORT_WINDOW_SECONDS = 42.0

_RECOVERY_SECONDS = 20.0  # Between outages: whatever waited for one is done before the next.
_QUIET_SECONDS = 2.0  # At the end, so that the last fault is over before the load stops.
_MOST_AT_ONCE = 2
_GAP_SECONDS = (0.5, 6.0)
_MIN_SECONDS = 0.5


class FaultKind(StrEnum):
    """The kinds of faults. Each lasts until it is undone."""

    KILL = "kill"
    """The process is killed, and started again at the end."""
    PAUSE = "pause"
    """The process is stopped by SIGSTOP; its connections stay open."""
    HANG = "hang"
    """All replicas of a service are stopped by SIGSTOP."""
    AWAY = "away"
    """All replicas of a service, the store, or the database, are killed."""
    CUT = "cut"
    """Connections are reset again and again."""
    HOLD = "hold"
    """Connections stay open, and no byte gets through."""
    SLOW = "slow"
    """Each piece of data is late."""
    FULL = "full"
    """The disk of the runners' workspaces is full."""


_OFTEN = 6  # PostgreSQL is one process among many, and everything needs it.
_TARGETS: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.KILL: (*PROCESSES, *[POSTGRES] * _OFTEN),
    FaultKind.PAUSE: (*PROCESSES, *[POSTGRES] * _OFTEN),
    FaultKind.HANG: SERVICES,
    FaultKind.AWAY: (*SERVICES, "runner", POSTGRES, S3, S3),
    FaultKind.CUT: LINKS,
    FaultKind.HOLD: LINKS,
    FaultKind.SLOW: LINKS,
    FaultKind.FULL: (DISK,),
}
_MOST_SECONDS = {
    FaultKind.KILL: 10.0,
    FaultKind.PAUSE: 60.0,
    FaultKind.HANG: 60.0,
    FaultKind.AWAY: 90.0,
    FaultKind.CUT: 20.0,
    FaultKind.HOLD: 30.0,
    FaultKind.SLOW: 30.0,
    FaultKind.FULL: 45.0,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and when it begins and how long it lasts, in seconds. `delay_seconds` is of SLOW."""

    start_seconds: float
    seconds: float
    kind: FaultKind
    target: str
    delay_seconds: float = 0.0

    @property
    def end_seconds(self) -> float:
        """The time at which it is over."""
        return round(self.start_seconds + self.seconds, 1)

    def __str__(self) -> str:
        delay = f" by {1000 * self.delay_seconds:.0f} ms" if self.delay_seconds else ""
        return f"{self.kind} {self.target}{delay} for {self.seconds:.1f} s"


def make_plan(seed: int, window_seconds: float, nodes: tuple[str, ...] = ()) -> list[Fault]:
    """Return the faults in the order of their beginning; all are over within the window.

    At most two are active at once, and never two on one service or store. Each kind has its turn
    before one comes again. Nodes of a cluster meet the faults of PostgreSQL's process as often.
    """
    random = Random(seed)
    end = window_seconds - _QUIET_SECONDS
    faults: list[Fault] = []
    kinds: list[FaultKind] = []
    now = random.uniform(*_GAP_SECONDS)
    while now + _MIN_SECONDS <= end:
        if not kinds:
            kinds = list(FaultKind)
            random.shuffle(kinds)
        kind = kinds.pop()
        active = [fault for fault in faults if fault.end_seconds > now]
        if len(active) >= _MOST_AT_ONCE:
            now = min(fault.end_seconds for fault in active)
            active = [fault for fault in active if fault.end_seconds > now]
        busy = {group_of(fault.target) for fault in active}
        more = nodes * _TARGETS[kind].count(POSTGRES)
        target = random.choice((*_TARGETS[kind], *more))
        longest = min(_MOST_SECONDS[kind], window_seconds / 3, end - now)
        # Most faults are short: the square of a random number is small more often than large.
        seconds = round(max(_MIN_SECONDS, longest * random.random() ** 2), 1)
        delay = round(random.uniform(0.05, 1.0), 2) if kind is FaultKind.SLOW else 0.0
        if group_of(target) not in busy and now + seconds <= end:
            faults.append(Fault(round(now, 1), seconds, kind, target, delay))
        now = round(now + random.uniform(*_GAP_SECONDS), 1)
    return faults


def make_outages(seconds: float, only: str = "") -> list[Fault]:
    """Return one outage of this length after the other, each with time to recover.

    Every service and its workers, the runner, PostgreSQL and S3 go away, and so do the plugin and
    the model provider; every service, PostgreSQL, S3, the plugin and the provider hang; and one of
    two replicas of every process goes away, or hangs. With `only`, the outages whose kind and
    target begin with it.
    """
    outages = [
        *((FaultKind.AWAY, target) for target in (*REPLICATED, POSTGRES, S3)),
        *((FaultKind.KILL, target) for target in (PLUGIN, MODEL, *REPLICATED)),
        (FaultKind.HOLD, S3),
        *((FaultKind.HANG, target) for target in SERVICES),
        *((FaultKind.PAUSE, target) for target in (POSTGRES, PLUGIN, MODEL, *REPLICATED)),
    ]
    chosen = [(kind, target) for kind, target in outages if f"{kind} {target}".startswith(only)]
    return [
        Fault(_RECOVERY_SECONDS + place * (seconds + _RECOVERY_SECONDS), seconds, kind, target)
        for place, (kind, target) in enumerate(chosen)
    ]


def can_spawn(fault: Fault, *, has_files: bool, is_gated: bool) -> bool:
    """Return whether a spawn needs nothing that the fault takes away: another replica answers, or
    only runs and background jobs wait, or the spawn hands over no files, or no plugin judges it.
    """
    if fault.kind in (FaultKind.PAUSE, FaultKind.KILL) and fault.target in REPLICATED:
        return True
    waited_for = {"session", "transcript", "hook", POSTGRES}
    if has_files:
        waited_for |= {"attachment-blob", S3}
    if is_gated:
        waited_for.add(PLUGIN)
    return fault.target not in waited_for


def group_of(target: str) -> str:
    """Return the part of the mesh to which the process or link belongs."""
    if target.startswith(POSTGRES):
        return POSTGRES
    if target == DISK:
        return "runner"  # A runner without room does not get ready.
    return target.removesuffix("-2")
