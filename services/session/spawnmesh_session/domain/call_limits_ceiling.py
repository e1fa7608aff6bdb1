"""The operator's ceiling of what the settings of a tenant may allow its callers."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024
StoredLimits = Mapping[str, Mapping[str, Any]]
"""The limits in a tenant's settings as they are stored, by class and name of the field."""


class ClassCeiling(BaseModel):
    """The largest limits of a tenant for one class of RPCs at one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls_per_second: int = Field(default=1000, ge=1, le=1_000_000)
    bytes_per_second: int = Field(default=512 * MIB, ge=MIB, le=1024**4)
    concurrent_call_count: int = Field(default=256, ge=1, le=100_000)


class CallLimitsCeiling(BaseModel):
    """The largest limits of a tenant. As JSON it has the numbers that differ from the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: ClassCeiling = ClassCeiling()
    write: ClassCeiling = ClassCeiling()
    spawn: ClassCeiling = ClassCeiling()
    transfer: ClassCeiling = ClassCeiling()
    scan: ClassCeiling = ClassCeiling()
    generate: ClassCeiling = ClassCeiling()
    watch: ClassCeiling = ClassCeiling(concurrent_call_count=4096)

    def excess(self, limits: StoredLimits) -> tuple[str, int] | None:
        """Return the first limit above the ceiling, as `class.field`, and its ceiling."""
        for rpc_class, own in limits.items():
            ceiling = getattr(self, rpc_class)
            for name, value in own.items():
                if int(value) > getattr(ceiling, name):
                    return f"{rpc_class}.{name}", getattr(ceiling, name)
        return None

    def bound(self, limits: StoredLimits) -> StoredLimits:
        """Return the limits, each at most its ceiling: the operator may have lowered it."""
        return {
            rpc_class: {
                name: min(int(value), getattr(getattr(self, rpc_class), name)) for name, value in own.items()
            }
            for rpc_class, own in limits.items()
        }
