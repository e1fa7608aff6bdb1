"""Loopback ports that nobody listens on."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from secrets import SystemRandom

from spawnmesh_devstack.failures import PortBusy, StackError

LOOPBACK = "127.0.0.1"
PAIR_DISTANCE = 10_000

# Linux gives outgoing connections ports from 32768 up; below that, nothing takes a port between our look and its use.
_EPHEMERAL_FIRST = 32_768
_LOWEST = 12_000


def free_ports(count: int, below: int = _EPHEMERAL_FIRST) -> list[int]:
    """Picks `count` different ports below `below` that are free now. Nothing reserves them: bind them soon.

    Raises StackError when there are not that many.
    """
    return _pick(count, below, _bind)


def free_port_pairs(count: int, below: int = _EPHEMERAL_FIRST - PAIR_DISTANCE) -> list[int]:
    """Like `free_ports`, and port + 10000 is free as well: SeaweedFS serves gRPC there."""

    def bind_both(port: int, held: ExitStack) -> bool:
        return _bind(port, held) and _bind(port + PAIR_DISTANCE, held)

    return _pick(count, below, bind_both)


def require_free(port: int, purpose: str) -> int:
    """Gives the port back if nobody listens on it, else raises PortBusy."""
    with ExitStack() as held:
        if not _bind(port, held):
            raise PortBusy(port, purpose)
    return port


def _pick(count: int, below: int, bind: Callable[[int, ExitStack], bool]) -> list[int]:
    found: list[int] = []
    candidates = range(_LOWEST, below)
    with ExitStack() as held:  # all stay bound until the last is found, so that no port is given twice
        for port in SystemRandom().sample(candidates, len(candidates)):
            if len(found) == count:
                break
            if bind(port, held):
                found.append(port)
    if len(found) < count:
        raise StackError(f"only {len(found)} of {count} free ports found between {_LOWEST} and {below}")
    return found


def _bind(port: int, held: ExitStack) -> bool:
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    # A listener still refuses the bind; a connection of a former one in TIME_WAIT does not.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
