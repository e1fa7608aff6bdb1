"""The members of a family as lanes on one time line."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.states import ShownState

WIDTH = 1000
"""The units of a lane, from the first time in the queue to now or to the last end."""
_LEAST_WIDTH = 3.0


@dataclass(frozen=True, slots=True)
class LaneMember:
    """A session of a family. The times are of its newest run; None has not happened.

    `file_count` is the number of files that this run has published.
    """

    session_id: str
    name: str
    agent_id: str
    depth: int
    state: ShownState
    token_count: int
    cost_micros: int
    file_count: int
    queue_time: datetime
    start_time: datetime | None
    end_time: datetime | None


@dataclass(frozen=True, slots=True)
class Lane:
    """A member and the parts of its lane, in units: the wait for a runner, then the work."""

    member: LaneMember
    wait_x: float
    wait_width: float
    work_x: float
    work_width: float


def lanes_of(members: Sequence[LaneMember], now: datetime) -> list[Lane]:
    """Return a lane for each member, on the same scale."""
    if not members:
        return []
    begin = min(member.queue_time for member in members)
    end = max(member.end_time or now for member in members)
    seconds = max((end - begin).total_seconds(), 0.001)

    def place(time: datetime) -> float:
        share = (time - begin).total_seconds() / seconds
        return round(min(max(share, 0.0), 1.0) * WIDTH, 1)

    lanes = []
    for member in members:
        queued, ended = place(member.queue_time), place(member.end_time or now)
        started = ended if member.start_time is None else place(member.start_time)
        work = 0.0 if member.start_time is None else max(ended - started, _LEAST_WIDTH)
        lanes.append(Lane(member, queued, max(started - queued, 0.0), min(started, WIDTH - work), work))
    return lanes
