"""Free loopback ports, each reserved for one process of this machine's user at a time."""

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

# Linux gives outgoing connections ports from 32768 up. Below, no connection takes a port between
# the check and its use.
_QUIET = range(12_000, 32_768)


def free_ports(count: int, among: range = _QUIET) -> list[int]:
    """Return `count` different free ports, reserved for the lifetime of this process.

    Neither this process nor another one of the same user gets them again. Raises StackError if
    there are not enough.
    """
    return _pick(count, among, _take)


def free_port_pairs(count: int, among: range = _QUIET[:-PAIR_DISTANCE]) -> list[int]:
    """Like `free_ports`, where port + 10000 is free as well: SeaweedFS serves gRPC there."""

    def take_both(port: int, held: ExitStack) -> bool:
        return _take(port, held) and _take(port + PAIR_DISTANCE, held)

    return _pick(count, among, take_both)


def require_free(port: int, purpose: str) -> int:
    """Return the port if it is free, otherwise raise PortBusy. It is not given out again."""
    with ExitStack() as held:
        if not _bind(port, held):
            raise PortBusy(port, purpose)
    _reserve(port)
    return port


def _pick(count: int, among: range, take: Callable[[int, ExitStack], bool]) -> list[int]:
    found: list[int] = []
    first = SystemRandom().randrange(len(among))  # Processes that start together try other ports first.
    with ExitStack() as held:
        for place in range(len(among)):
            if len(found) == count:
                break
            port = among[(first + place) % len(among)]
            if take(port, held):
                found.append(port)
    if len(found) < count:
        raise StackError(
            f"only {len(found)} of {count} free ports found between {among.start} and {among.stop - 1}"
        )
    return found


def _take(port: int, held: ExitStack) -> bool:
    return _bind(port, held) and _reserve(port)


_reserved: set[int] = set()


def _reserve(port: int) -> bool:
    """Reserve the port for this process; return whether it was free. The kernel releases it when
    the process ends.
    """
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
    """Return a file in which each byte stands for a port. It stays open, because closing it
    releases every lock of this process.
    """
    file = Path(tempfile.gettempdir()) / f"spawnmesh-ports-{os.getuid()}.lock"
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StackError(
            f"ports cannot be reserved in {file}: {error.strerror}; remove it, or set TMPDIR to a "
            "directory of your own"
        ) from None


def _bind(port: int, held: ExitStack) -> bool:
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    # A listener still refuses the bind; a former connection in TIME_WAIT does not.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
