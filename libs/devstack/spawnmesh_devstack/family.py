"""A process with all its descendants."""

import os
from contextlib import suppress
from signal import Signals

import psutil


def family(leader: psutil.Process) -> list[psutil.Process]:
    """Return the leader, its descendants, and the members of its process group that still run.

    The backends of PostgreSQL leave the group but stay descendants; an orphan loses its parent but
    stays in the group.
    """
    found: dict[int, psutil.Process] = {}
    if runs(leader):
        found[leader.pid] = leader
        with suppress(psutil.NoSuchProcess):
            found |= {child.pid: child for child in leader.children(recursive=True)}
    elif psutil.pid_exists(leader.pid) and not leader.is_running():
        return []  # the number belongs to an unrelated process now, and so would its group
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == leader.pid:
                found[process.pid] = process
    return [process for process in found.values() if runs(process)]


def signal_all(processes: list[psutil.Process], signal: Signals) -> None:
    """Send the signal to each process that still runs."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal)


def runs(process: psutil.Process) -> bool:
    """Return whether this very process still runs: it is neither gone, nor a zombie, nor another
    process with its number.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
