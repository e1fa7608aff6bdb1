"""The hooks for which this service calls the hook service."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Hook(StrEnum):
    """A hook that this service dispatches or publishes, spelled as its `HookKind`."""

    BEFORE_SPAWN = "BEFORE_SPAWN"
    BEFORE_AGENT_FINALIZE = "BEFORE_AGENT_FINALIZE"
    SUBAGENT_ENDED = "SUBAGENT_ENDED"
    SUBAGENT_SPAWNED = "SUBAGENT_SPAWNED"
    AGENT_END = "AGENT_END"
    SESSION_START = "SESSION_START"
    SESSION_END = "SESSION_END"
    DELIVERY_TARGET = "DELIVERY_TARGET"
    APPROVAL_REQUESTED = "APPROVAL_REQUESTED"
    APPROVAL_ESCALATED = "APPROVAL_ESCALATED"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    BUDGET_REACHED = "BUDGET_REACHED"
    BUDGET_CHANGED = "BUDGET_CHANGED"
    FILES_PUBLISHED = "FILES_PUBLISHED"


RUN_END_HOOKS = (Hook.SUBAGENT_ENDED, Hook.AGENT_END, Hook.DELIVERY_TARGET)
"""The hooks that hear of the end of a run."""


@dataclass(frozen=True, slots=True)
class EnabledHooks:
    """The hooks that plugins of a tenant, or of the operator, may be registered for.

    The hook service enables a hook before it stores the first plugin for it. So a hook that is not
    enabled has no plugin, and the hook service would have nothing to do.
    """

    names: frozenset[str] | None
    """None enables every hook: the tenant is gone, or the hook service has said nothing so far."""

    def __contains__(self, hook: Hook) -> bool:
        return self.names is None or hook in self.names

    def has_any(self, hooks: Iterable[Hook]) -> bool:
        """Return whether one of the hooks is enabled."""
        return any(hook in self for hook in hooks)


ALL_HOOKS = EnabledHooks(None)
