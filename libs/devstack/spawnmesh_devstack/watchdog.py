"""End the children of a process that died without ending them.

`python -m spawnmesh_devstack.watchdog` reads one JSON line for each child that starts or has ended.
The end of its input means that the parent is gone. Each listed child then gets its signal, a grace
period, and SIGKILL.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from signal import SIGCONT, SIGKILL, Signals
from types import TracebackType
from typing import Self, TextIO

import psutil

from spawnmesh_devstack.family import family, runs, signal_all

_POLL_SECONDS = 0.02


class Watchdog:
    """The parent's side: a process that outlives this one just long enough to end the listed
    children.

    Leaving the context ends the listed children in the same way.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spawnmesh_devstack.watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for the parent, which needs its watchdog until its end
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process = None

    @property
    def pid(self) -> int:
        """The process id of the watchdog."""
        return self._running().pid

    def watch(self, pid: int, signal: Signals, grace_seconds: float) -> None:
        """Add a child to the list. Raises BrokenPipeError if the watchdog was killed."""
        self._send({"pid": pid, "signal": int(signal), "grace_seconds": grace_seconds})

    def forget(self, pid: int) -> None:
        """Remove a child that has ended from the list."""
        with suppress(BrokenPipeError):
            self._send({"pid": pid, "signal": 0, "grace_seconds": 0})

    def _send(self, order: dict[str, float]) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the watchdog is used outside its context")
        return self._process


def guard(orders: TextIO) -> None:
    """Follow the orders until they end, then end every listed child with its descendants; return
    when all are gone.
    """
    listed: dict[int, tuple[psutil.Process, Signals, float]] = {}
    for line in orders:
        order = json.loads(line)
        pid = order["pid"]
        if order["signal"] == 0:
            listed.pop(pid, None)
        else:
            with suppress(psutil.NoSuchProcess):
                listed[pid] = (psutil.Process(pid), Signals(order["signal"]), order["grace_seconds"])
    ended = time.monotonic()
    families = [(leader, family(leader), ended + grace) for leader, _, grace in listed.values()]
    for leader, signal, _ in listed.values():
        # A paused process takes no signal but SIGKILL until it continues.
        signal_all([leader], signal)
        signal_all([leader], SIGCONT)
    while any(runs(member) for _, members, _ in families for member in members):
        for leader, members, deadline in families:
            if not runs(leader) or time.monotonic() >= deadline:
                signal_all(members, SIGKILL)
        time.sleep(_POLL_SECONDS)
    for leader, _, _ in listed.values():  # children that started while their leader was ending
        signal_all(family(leader), SIGKILL)


if __name__ == "__main__":
    os.chdir("/")  # keeps no directory in use
    guard(sys.stdin)
