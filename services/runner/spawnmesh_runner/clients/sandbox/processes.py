"""The processes of this machine, by their parents."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from spawnmesh_core.clock import monotonic_seconds

_MAX_AGE_SECONDS = 0.25
_PROC = Path("/proc")


@dataclass(slots=True)
class ProcessTable:
    """The children of each process, read four times a second at most.

    The programs of a runner share it, because a reading costs the same for one and for many.
    """

    _children: dict[int, list[int]] = field(default_factory=dict)
    _read_at: float = float("-inf")
    _lock: Lock = field(default_factory=Lock)

    def below(self, pid: int) -> list[int]:
        """Return the process and its descendants. May block.

        A process whose parent ends belongs to process 1 of its pid namespace, so it stays below the
        process that made the namespace.
        """
        with self._lock:
            if monotonic_seconds() - self._read_at > _MAX_AGE_SECONDS:
                self._children = _children_of_all()
                self._read_at = monotonic_seconds()
            children = self._children
        found = [pid]
        for one in found:
            found += children.get(one, [])
        return found


def _children_of_all() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    if not _PROC.is_dir():
        return children
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # It ended meanwhile.
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    return children
