"""What a plugin is, and what its registration has to satisfy."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

DEFAULT_TIMEOUT = timedelta(seconds=15)


class HookKind(StrEnum):
    """The moments at which plugins are called; spelled as in the contract and in the database."""

    BEFORE_SPAWN = "BEFORE_SPAWN"
    BEFORE_AGENT_FINALIZE = "BEFORE_AGENT_FINALIZE"
    SUBAGENT_ENDED = "SUBAGENT_ENDED"


GATES = frozenset({HookKind.BEFORE_SPAWN, HookKind.BEFORE_AGENT_FINALIZE})


class FailurePolicy(StrEnum):
    """What a plugin without a valid answer counts as: no objection, or an objection."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"


class Grant(StrEnum):
    """What a plugin may see and do beyond metadata."""

    CONVERSATION_ACCESS = "CONVERSATION_ACCESS"
    FINALIZE_CONTROL = "FINALIZE_CONTROL"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registered plugin; `endpoint` is as it was given, `grpc://host:port`."""

    name: str
    endpoint: str
    hooks: tuple[HookKind, ...]
    priority: int
    timeout: timedelta
    failure_policy: FailurePolicy
    grants: tuple[Grant, ...]

    @property
    def sees_content(self) -> bool:
        return Grant.CONVERSATION_ACCESS in self.grants


def default_failure_policy(hooks: Iterable[HookKind]) -> FailurePolicy:
    """CLOSED as soon as one of the hooks is a gate."""
    return FailurePolicy.CLOSED if GATES.intersection(hooks) else FailurePolicy.OPEN


def missing_grant(plugin: Plugin) -> Grant | None:
    """The grant that one of the plugin's hooks needs and it does not have."""
    if HookKind.BEFORE_AGENT_FINALIZE in plugin.hooks and Grant.FINALIZE_CONTROL not in plugin.grants:
        return Grant.FINALIZE_CONTROL
    return None
