"""What a plugin is, and what its registration has to satisfy."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

DEFAULT_TIMEOUT = timedelta(seconds=15)
DEFAULT_CONCURRENT_CALLS = 16


class HookKind(StrEnum):
    """The moments at which plugins are called; spelled as in the contract and in the database."""

    BEFORE_SPAWN = "BEFORE_SPAWN"
    BEFORE_AGENT_FINALIZE = "BEFORE_AGENT_FINALIZE"
    SUBAGENT_ENDED = "SUBAGENT_ENDED"
    SUBAGENT_SPAWNED = "SUBAGENT_SPAWNED"
    BEFORE_MODEL_RESOLVE = "BEFORE_MODEL_RESOLVE"
    BEFORE_PROMPT_BUILD = "BEFORE_PROMPT_BUILD"
    LLM_INPUT = "LLM_INPUT"
    LLM_OUTPUT = "LLM_OUTPUT"
    BEFORE_TOOL_CALL = "BEFORE_TOOL_CALL"
    AFTER_TOOL_CALL = "AFTER_TOOL_CALL"
    AGENT_END = "AGENT_END"
    SESSION_START = "SESSION_START"
    SESSION_END = "SESSION_END"
    DELIVERY_TARGET = "DELIVERY_TARGET"
    BEFORE_COMPACTION = "BEFORE_COMPACTION"
    AFTER_COMPACTION = "AFTER_COMPACTION"


GATES = frozenset(
    {HookKind.BEFORE_SPAWN, HookKind.BEFORE_AGENT_FINALIZE, HookKind.BEFORE_TOOL_CALL, HookKind.BEFORE_COMPACTION}
)
MODIFIERS = frozenset({HookKind.BEFORE_MODEL_RESOLVE, HookKind.BEFORE_PROMPT_BUILD, HookKind.DELIVERY_TARGET})
OBSERVERS = frozenset(HookKind) - GATES - MODIFIERS
RUN_OBSERVERS = frozenset({HookKind.LLM_INPUT, HookKind.LLM_OUTPUT, HookKind.AFTER_TOOL_CALL})
"""What a run tells of itself."""
TRANSCRIPT_OBSERVERS = frozenset({HookKind.AFTER_COMPACTION})
"""What the transcript service tells."""
SESSION_OBSERVERS = OBSERVERS - RUN_OBSERVERS - TRANSCRIPT_OBSERVERS
"""What the session service tells."""


WITHOUT_CONTENT = frozenset(
    {
        *(HookKind.BEFORE_MODEL_RESOLVE, HookKind.DELIVERY_TARGET, HookKind.SUBAGENT_SPAWNED, HookKind.SUBAGENT_ENDED),
        *(HookKind.AGENT_END, HookKind.SESSION_START, HookKind.SESSION_END),
    }
)
"""Where there is no content to be seen, whatever a plugin is granted."""


class FailurePolicy(StrEnum):
    """What a plugin without a valid answer counts as: no objection, or an objection."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"


class Grant(StrEnum):
    """What a plugin may see and do beyond metadata."""

    CONVERSATION_ACCESS = "CONVERSATION_ACCESS"
    FINALIZE_CONTROL = "FINALIZE_CONTROL"
    PROMPT_INJECTION = "PROMPT_INJECTION"


NEEDED_GRANTS = {
    HookKind.BEFORE_AGENT_FINALIZE: Grant.FINALIZE_CONTROL,
    HookKind.BEFORE_PROMPT_BUILD: Grant.PROMPT_INJECTION,
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registered plugin; `endpoint` is as it was given. `generation` rises with its registrations, pauses and resumptions."""

    name: str
    endpoint: str
    hooks: tuple[HookKind, ...]
    priority: int
    timeout: timedelta
    failure_policy: FailurePolicy
    grants: tuple[Grant, ...]
    max_concurrent_calls: int = DEFAULT_CONCURRENT_CALLS
    paused: bool = False
    bundled: bool = False
    generation: int = 0

    @property
    def sees_content(self) -> bool:
        return self.bundled or Grant.CONVERSATION_ACCESS in self.grants

    @property
    def changes_prompts(self) -> bool:
        return self.bundled or Grant.PROMPT_INJECTION in self.grants


@dataclass(frozen=True, slots=True)
class Viewer:
    """A plugin that is about to be called, and whether what it sees has markers in place of secrets."""

    plugin: Plugin
    masks_secrets: bool


def default_failure_policy(hooks: Iterable[HookKind]) -> FailurePolicy:
    """CLOSED as soon as one of the hooks is a gate."""
    return FailurePolicy.CLOSED if GATES.intersection(hooks) else FailurePolicy.OPEN


def missing_grant(plugin: Plugin) -> tuple[HookKind, Grant] | None:
    """The hook that needs a grant which the plugin does not have, and the grant; a bundled plugin needs none."""
    if plugin.bundled:
        return None
    for hook, grant in NEEDED_GRANTS.items():
        if hook in plugin.hooks and grant not in plugin.grants:
            return hook, grant
    return None


def in_order(bundled: Iterable[Plugin], registered: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Both together, highest priority first; of equals the bundled ones first, and each kind as it came."""
    return tuple(sorted((*bundled, *registered), key=lambda plugin: -plugin.priority))
