"""Plugins, hooks and grants, and the rules for a registration."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

DEFAULT_TIMEOUT = timedelta(seconds=15)
DEFAULT_CONCURRENT_CALLS = 16
_ETAG_DIGITS = 32


class HookKind(StrEnum):
    """The hooks at which plugins are called, spelled as in the proto and in the database."""

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
    APPROVAL_REQUESTED = "APPROVAL_REQUESTED"
    APPROVAL_ESCALATED = "APPROVAL_ESCALATED"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    BUDGET_REACHED = "BUDGET_REACHED"
    BUDGET_CHANGED = "BUDGET_CHANGED"
    FILES_PUBLISHED = "FILES_PUBLISHED"


GATES = frozenset(
    {
        HookKind.BEFORE_SPAWN,
        HookKind.BEFORE_AGENT_FINALIZE,
        HookKind.BEFORE_TOOL_CALL,
        HookKind.BEFORE_COMPACTION,
    }
)
MODIFIERS = frozenset({HookKind.BEFORE_MODEL_RESOLVE, HookKind.BEFORE_PROMPT_BUILD, HookKind.DELIVERY_TARGET})
AWAITED_BY_RUNS = frozenset(
    {
        HookKind.BEFORE_AGENT_FINALIZE,
        HookKind.BEFORE_MODEL_RESOLVE,
        HookKind.BEFORE_PROMPT_BUILD,
        HookKind.BEFORE_TOOL_CALL,
    }
)
"""Hooks at which a run waits for a plugin that gives no answer and is CLOSED.

A spawn and a compaction fail instead, and an end is delivered without a target.
"""
AWAITED = GATES | MODIFIERS
"""Hooks at which something waits for the plugins."""
OBSERVERS = frozenset(HookKind) - AWAITED
RUN_OBSERVERS = frozenset({HookKind.LLM_INPUT, HookKind.LLM_OUTPUT, HookKind.AFTER_TOOL_CALL})
"""The events that a run publishes."""
TRANSCRIPT_OBSERVERS = frozenset({HookKind.AFTER_COMPACTION})
"""The events that the transcript service publishes."""
SESSION_OBSERVERS = OBSERVERS - RUN_OBSERVERS - TRANSCRIPT_OBSERVERS
"""The events that the session service publishes."""
HELD_WHILE_PAUSED = frozenset({HookKind.SUBAGENT_ENDED})
"""Events that a paused observer receives when it is resumed: it may have allowed the spawn."""
WITHOUT_CONTENT = frozenset(
    {
        HookKind.BEFORE_MODEL_RESOLVE,
        HookKind.DELIVERY_TARGET,
        HookKind.SUBAGENT_SPAWNED,
        HookKind.SUBAGENT_ENDED,
        HookKind.AGENT_END,
        HookKind.SESSION_START,
        HookKind.SESSION_END,
        HookKind.APPROVAL_REQUESTED,
        HookKind.APPROVAL_ESCALATED,
        HookKind.APPROVAL_DECIDED,
        HookKind.BUDGET_REACHED,
        HookKind.BUDGET_CHANGED,
        HookKind.FILES_PUBLISHED,
    }
)
"""Hooks whose events hold no content of a conversation."""


class FailurePolicy(StrEnum):
    """The meaning of a plugin's failure: OPEN is no objection, CLOSED is an objection."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"


class Grant(StrEnum):
    """A permission to see or do more than reading metadata."""

    CONVERSATION_ACCESS = "CONVERSATION_ACCESS"
    FINALIZE_CONTROL = "FINALIZE_CONTROL"
    PROMPT_INJECTION = "PROMPT_INJECTION"


NEEDED_GRANTS = {
    HookKind.BEFORE_AGENT_FINALIZE: Grant.FINALIZE_CONTROL,
    HookKind.BEFORE_PROMPT_BUILD: Grant.PROMPT_INJECTION,
}


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """The largest numbers of a tenant's plugins, and of those that something waits for."""

    max_plugin_count: int = 32
    max_gate_count: int = 16


@dataclass(frozen=True, slots=True)
class PluginCounts:
    """The numbers of a tenant's plugins, and whether one plugin is among them."""

    plugin_count: int
    gate_count: int
    is_known: bool
    is_known_gate: bool


RegistrationKey = tuple[str, str, int]
"""Tenant, name and generation of a plugin."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registered plugin. `endpoint` is spelled as it was registered.

    `registration` is the order among equal priorities: negative for a bundled plugin. `generation`
    rises with each change, pause and resume of the plugin. A run waits for the plugin for
    `max_wait`, or until its deadline if that is None.
    """

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
    max_wait: timedelta | None = None
    registration: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Return the place of the plugin in the order of the tenant's plugins."""
        return -self.priority, self.registration

    @property
    def is_gate(self) -> bool:
        """Return whether a spawn, a run or a compaction waits for the plugin."""
        return bool(AWAITED.intersection(self.hooks))

    @property
    def sees_content(self) -> bool:
        return self.bundled or Grant.CONVERSATION_ACCESS in self.grants

    @property
    def changes_prompts(self) -> bool:
        return self.bundled or Grant.PROMPT_INJECTION in self.grants


@dataclass(frozen=True, slots=True)
class ContentAccess:
    """The access of a plugin to content: by its grants, and masked if the tenant wants that."""

    plugin: Plugin
    masks_secrets: bool


def is_same_content(one: Plugin, other: Plugin) -> bool:
    """Return whether the plugins differ at most in what a registration does not give."""
    return one == replace(other, paused=one.paused, generation=one.generation, registration=one.registration)


def etag_of(plugin: Plugin) -> str:
    """Return the etag: a hash of the content and the generation, which rises with each change."""
    return hashlib.sha256(repr(plugin).encode()).hexdigest()[:_ETAG_DIGITS]


def default_failure_policy(hooks: Iterable[HookKind]) -> FailurePolicy:
    """Return CLOSED if one of the hooks is a gate, else OPEN."""
    return FailurePolicy.CLOSED if GATES.intersection(hooks) else FailurePolicy.OPEN


def wait_without_effect(plugin: Plugin) -> str:
    """Return why the plugin's `max_wait` would have no effect; empty if it has one or is None."""
    if plugin.max_wait is None:
        return ""
    if plugin.failure_policy is FailurePolicy.OPEN:
        return "needs the failure policy CLOSED: nothing waits for a plugin that is OPEN"
    if not AWAITED_BY_RUNS.intersection(plugin.hooks):
        return f"needs one of the hooks at which runs wait: {', '.join(sorted(AWAITED_BY_RUNS))}"
    return ""


def has_bounded_wait(plugin: Plugin, hook: HookKind) -> bool:
    """Return whether the plugin's `max_wait` bounds the time that a run waits at this hook."""
    return plugin.max_wait is not None and hook in AWAITED_BY_RUNS


def missing_grant(plugin: Plugin) -> tuple[HookKind, Grant] | None:
    """Return a hook of the plugin and the grant that the hook needs and the plugin lacks.

    Return None if no grant is missing. A bundled plugin needs no grants.
    """
    if plugin.bundled:
        return None
    for hook, grant in NEEDED_GRANTS.items():
        if hook in plugin.hooks and grant not in plugin.grants:
            return hook, grant
    return None


def in_order(bundled: Iterable[Plugin], registered: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return all plugins, highest priority first.

    Among equal priorities bundled plugins come first, in the order of their file, and then the
    others in that of their registration.
    """
    return tuple(sorted((*bundled, *registered), key=lambda plugin: plugin.place))


def registration_key(tenant_id: str, plugin: Plugin) -> RegistrationKey:
    """Return the key that identifies one registration of the plugin."""
    return tenant_id, plugin.name, plugin.generation
