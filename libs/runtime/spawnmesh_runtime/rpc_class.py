"""The classes of RPCs, which decide the limits of their calls."""

from enum import StrEnum, auto


class RpcClass(StrEnum):
    """The classes of RPCs that have limits, as the contract names them."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        return name

    READ = auto()
    WRITE = auto()
    SPAWN = auto()
    TRANSFER = auto()
    SCAN = auto()
    GENERATE = auto()
    WATCH = auto()
