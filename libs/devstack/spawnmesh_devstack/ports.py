"""Loopback ports that nobody listens on, each given to one process of this machine's user at a time."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from secrets import SystemRandom

from spawnmesh_devstack.failures import PortBusy, StackError

LOOPBACK = "127.0.0.1"
PAIR_DISTANCE = 10_000

# Linux gives outgoing connections ports from 32768 up; below that, nothing takes a port between our look and its use.
_QUIET = range(12_000, 32_768)


def free_ports(count: int, among: range = _QUIET) -> list[int]:
    """Picks `count` different ports that are free now, and reserves them for as long as this process lives.

    Neither this process nor another one of the same user picks them again. Raises StackError when there are not that many.
    """
    return _pick(count, among, _take)


def free_port_pairs(count: int, among: range = _QUIET[:-PAIR_DISTANCE]) -> list[int]:
    """Like `free_ports`, and port + 10000 is free as well: SeaweedFS serves gRPC there."""

    def take_both(port: int, held: ExitStack) -> bool:
        return _take(port, held) and _take(port + PAIR_DISTANCE, held)

    return _pick(count, among, take_both)


def require_free(port: int, purpose: str) -> int:
    """Gives the port back if nobody listens on it, else raises PortBusy. It is not picked for anything else from now on."""
    with ExitStack() as held:
        if not _bind(port, held):
            raise PortBusy(port, purpose)
    _reserve(port)
    return port


def _pick(count: int, among: range, take: Callable[[int, ExitStack], bool]) -> list[int]:
    found: list[int] = []
    with ExitStack() as held:
        for port in SystemRandom().sample(among, len(among)):
            if len(found) == count:
                break
            if take(port, held):
                found.append(port)
    if len(found) < count:
        raise StackError(f"only {len(found)} of {count} free ports found between {among.start} and {among.stop - 1}")
    return found


def _take(port: int, held: ExitStack) -> bool:
    return _bind(port, held) and _reserve(port)


_reserved: set[int] = set()


def _reserve(port: int) -> bool:
    """Whether the port is this process's from now on: it was not before, and is no other's. The kernel lets go of it when the process ends."""
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    _reserved.add(port)
    return True


@cache
def _reservations() -> int:
    """A file of which each byte stands for a port. It stays open: closing it lets go of every lock of this process."""
    file = Path(tempfile.gettempdir()) / f"spawnmesh-ports-{os.getuid()}.lock"
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StackError(
            f"ports cannot be reserved in {file}: {error.strerror}; remove it, or set TMPDIR to a directory of your own"
        ) from None


def _bind(port: int, held: ExitStack) -> bool:
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    # A listener still refuses the bind; a connection of a former one in TIME_WAIT does not.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
